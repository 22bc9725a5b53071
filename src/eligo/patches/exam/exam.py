"""The embedded exam: does selecting patches cost anything, and does it look where the text says?

For every seed a vision encoder first learns what patches show; then every arm trains from it for
the same steps, on the same scenes in the same order, and is measured on test scenes with attribute
pairs it has never seen. Runs are folders: what is there is not made again.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.files import write_text
from eligo.patches.data.config import ScenesDataConfig
from eligo.patches.data.scene_source import SceneSet, SceneSource
from eligo.patches.exam.config import ExamConfig
from eligo.patches.exam.leak import leak_test
from eligo.patches.exam.pointing import pointing
from eligo.patches.match.net import CrossSparseAggrNet
from eligo.patches.measure.evaluate import score_set
from eligo.patches.measure.metrics import AT, DirectionMetrics, retrieval_metrics
from eligo.patches.model import RetrievalModel
from eligo.patches.training.task import train_model
from eligo.report.intervals import paired_bootstrap

RESULT = "result.json"
_POINTS = 100.0
_WORSE = -1.0  # points of mean recall that slimming may cost
_TIMES_CHANCE = 3.0


class Exam:
    """All runs of an exam, in one folder."""

    def __init__(self, config: ExamConfig, out: Path, device: torch.device) -> None:
        self.config, self.out, self.device = config, out, device
        data = config.see_run(config.seeds[0]).data
        assert isinstance(data, ScenesDataConfig)
        self.source = SceneSource(data, device, dense=False, see=True)
        self._test: SceneSet | None = None

    @property
    def test(self) -> SceneSet:
        """The test scenes."""
        if self._test is None:
            data, config = self.source.config, self.config
            self._test = SceneSet(
                data.scenes, "test", config.test_images, config.test_captions, self.device
            )
        return self._test

    def run(self, tell: Callable[[int, str], None] = lambda *_: None) -> dict[str, Any]:
        """Train and measure what is missing; the whole result."""
        runs = [(arm, seed) for seed in self.config.seeds for arm in self.config.arms]
        results: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in self.config.arms}
        for number, (arm, seed) in enumerate(runs):
            tell(number, f"{arm}, seed {seed}")
            results[arm][seed] = self.result(arm, seed)
        tell(len(runs), "done")
        return summarise(self.config, results)

    def see(self, seed: int) -> Path:
        """Folder of the vision encoder of a seed."""
        config = self.config.see_run(seed).replace({"train.out": self.out})
        folder = config.train.folder / "model"
        if not (folder / "config.yaml").is_file():
            train_model(config, resume=True, source=self.source)
        return folder / "vision"

    def result(self, arm: str, seed: int) -> dict[str, Any]:
        """What one run came to; trained and measured if it is not there yet."""
        vision = self.see(seed)
        config = self.config.arm_run(arm, seed, str(vision)).replace({"train.out": self.out})
        path = config.train.folder / RESULT
        asked = config.model_dump(mode="json") | {
            "test": [self.config.test_images, self.config.test_captions]
        }
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            if found["asked"] == asked:
                return found
        began = time.monotonic()
        source = self.source.beside(dense=config.model.match.dense, see=False)
        train_model(config, resume=True, source=source)
        trained = time.monotonic()
        model = RetrievalModel.from_pretrained(config.train.folder, device=self.device)
        found = {"arm": arm, "seed": seed, "asked": asked} | self.measure(model)
        found["seconds"] = {"train": trained - began, "measure": time.monotonic() - trained}
        write_text(path, json.dumps(found) + "\n")
        return found

    def measure(self, model: RetrievalModel) -> dict[str, Any]:
        """Retrieval, pointing and leak of one model on the test scenes."""
        metrics = retrieval_metrics(score_set(model, self.test), self.test.positive)
        per_scene = _per_scene(metrics.image_to_text, metrics.text_to_image, self.test)
        found: dict[str, Any] = {"metrics": metrics.as_dict(), "per_scene": per_scene.tolist()}
        if isinstance(model.net, CrossSparseAggrNet):
            found["pointing"] = pointing(model, self.test)
            if model.uses_dense:
                found["leak"] = leak_test(model, self.test)
        return found


def _per_scene(
    image_to_text: DirectionMetrics, text_to_image: DirectionMetrics, scenes: SceneSet
) -> Float[Tensor, " scenes"]:
    """Each scene's part in the mean of the six recalls, in points: as a query, and its captions."""
    hits = [
        torch.stack([(side.ranks < k) for k in AT]).double().mean(0)
        for side in (image_to_text, text_to_image)
    ]
    of_captions = hits[1].view(len(scenes), -1).mean(1)
    return (_POINTS * (hits[0] + of_captions) / 2).cpu()


def summarise(config: ExamConfig, results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """Arms, comparisons with intervals, and whether each must is met."""
    arms = [_arm_row(arm, list(found.values())) for arm, found in results.items()]

    def compare(one: str, other: str) -> dict[str, Any]:
        differences = [
            [a - b for a, b in zip(left["per_scene"], right["per_scene"], strict=True)]
            for left, right in zip(results[one].values(), results[other].values(), strict=True)
        ]
        mean, low, high = paired_bootstrap(differences, resamples=config.resamples)
        return {"arm": one, "against": other, "difference": mean, "low": low, "high": high}

    pairs = [
        ("open", "ratio_1.0"), ("ratio_0.25", "ratio_1.0"), ("ratio_0.75", "ratio_1.0"),
        ("open", "global"), ("open_dense", "global"), ("paper", "global"), ("filip", "global"),
        ("open", "filip"), ("open_dense", "open"), ("paper", "open"),
    ]  # fmt: skip
    comparisons = [compare(*pair) for pair in pairs if set(pair) <= results.keys()]
    return {"arms": arms, "comparisons": comparisons, "musts": _musts(arms, comparisons)}


def _arm_row(arm: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(read: Callable[[dict[str, Any]], float]) -> float:
        return sum(map(read, runs)) / len(runs)

    row: dict[str, Any] = {
        "arm": arm,
        "mean_recall": mean(lambda run: run["metrics"]["rsum"] / 6),
        "by_seed": [round(run["metrics"]["rsum"] / 6, 2) for run in runs],
    }
    for name in ("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "t2i_mean_recall10"):
        row[name] = mean(lambda run, name=name: run["metrics"][name])
    if "pointing" in runs[0]:
        for name in runs[0]["pointing"]:
            row[f"pointing_{name}"] = mean(lambda run, name=name: run["pointing"][name])
    if "leak" in runs[0]:
        row["leak_free"] = all(run["leak"]["passes"] for run in runs)
    row["seconds"] = mean(lambda run: run["seconds"]["train"])
    return row


def _musts(arms: list[dict[str, Any]], comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bars of the exam, each with what was found; those whose arms were not run are absent."""
    found = {(row["arm"], row["against"]): row for row in comparisons}
    rows = {row["arm"]: row for row in arms}
    musts = []

    def must(name: str, value: float | bool, bar: str, met: bool) -> None:
        musts.append({"must": name, "found": value, "bar": bar, "met": met})

    if row := found.get(("open", "ratio_1.0")):
        must("ratio 0.5 not worse than no slimming (points, lower end)", row["low"],
             f"> {_WORSE}", row["low"] > _WORSE)  # fmt: skip
    if row := found.get(("open", "global")):
        must("ratio 0.5 above global cosine (points, lower end)", row["low"], "> 0",
             row["low"] > 0)  # fmt: skip
    if row := rows.get("open"):
        times = row["pointing_hit"] / max(row["pointing_chance"], 1e-9)
        must("best-scored patch on a mentioned object (times chance)", times,
             f">= {_TIMES_CHANCE}", times >= _TIMES_CHANCE)  # fmt: skip
    dense = [row["leak_free"] for row in arms if "leak_free" in row]
    if dense:
        must("leak test passes", all(dense), "true", all(dense))
    return musts
