"""Study on generated scenes: what does the selection cost, and does it find what the text names?

    python -m benchmarks.patches.study --workers 6 --out runs/patches_study

For every seed a vision encoder first learns to classify patches; then every variant trains from it
for the same steps, on the same scenes in the same order, and is evaluated on test scenes with
attribute pairs that no training scene has. Finished runs are not repeated. Several processes may
work in one folder, of one command (`--workers`) or of several: each takes a run that is free. One
of these small models leaves most of a GPU idle.
"""

import json as json_module
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from accelerate import PartialState
from pydantic import Field

from benchmarks.patches.leak import leak_test
from benchmarks.patches.pointing import pointing
from benchmarks.patches.summary import summarise
from benchmarks.studies import print_end, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.io.files import write_text
from eligo.io.locks import FileLock
from eligo.io.reading import read_json, reading
from eligo.patches.config import PatchesTrainConfig, ScenesDataConfig
from eligo.patches.data.scene_source import SceneSet, SceneSource
from eligo.patches.inference.evaluate import evaluate_set
from eligo.patches.metrics import AT, RetrievalMetrics
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.patches.training.task import train_model
from eligo.report.provenance import provenance
from eligo.train.progress import ProgressBar

RESULT = "result.json"
_CONFIG = Path(__file__).with_name("study.yaml")
_WAIT = 0.5  # seconds until the next look for a free run
Variant = Literal[
    "global", "filip", "open", "open_dense", "paper", "ratio_0.25", "ratio_0.75", "ratio_1.0"
]
"""One vector each; all with all; LAPS (ratio 0.5); with dense text; SEPS; LAPS at other ratios."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)
Report = Callable[[int, str], None]


class StudyConfig(Config):
    """Runs of the study; variants are the shipped scenes_* configs."""

    task: Literal["patches.study"] = "patches.study"
    """Task of this config."""
    variants: tuple[Variant, ...] = VARIANTS
    """Variants to compare; ratio_1.0 keeps all patches."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every variant is trained once with each seed."""
    see_steps: int = Field(default=3000, ge=1)
    """Steps in which a vision encoder, shared by the variants of a seed, learns patch labels."""
    steps: int = Field(default=1500, ge=1)
    """Training steps of every variant."""
    backbone_lr: float = Field(default=0.0, ge=0)
    """Learning rate of that encoder in the variants, relative to the heads'; 0: frozen."""
    test_images: int = Field(default=2000, ge=2)
    """Test scenes, with attribute pairs that no training scene has."""
    test_captions: int = Field(default=2, ge=1)
    """Sparse captions of each test scene."""
    resamples: int = Field(default=2000, ge=10)
    """Bootstrap resamples."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes of the variants' configs, by dotted key."""

    def quick(self) -> "StudyConfig":
        """The same study in a minute on a CPU, to try the code; its numbers mean nothing."""
        small = {"width": 32, "layers": 2, "heads": 2}
        encoders = {
            "small_vision": {"image_size": 56, "patch_size": 4, **small},
            "small_text": {"width": 32, "layers": 1, "heads": 2},
            "embed_dim": 32,
        }
        data = {"kind": "scenes", "scenes": {"height": 56, "width": 56}, "train_images": 256}
        return self.replace(
            {
                "seeds": self.seeds[:2], "see_steps": min(self.see_steps, 6),
                "steps": min(self.steps, 6), "test_images": min(self.test_images, 32),
                "resamples": min(self.resamples, 200),
                "changes": {
                    "train.batch_size": 8, "train.precision": "no", "model.encoders": encoders,
                    "data": data | {"validation_images": 16},
                },
            }
        )  # fmt: skip

    def see_run(self, seed: int) -> PatchesTrainConfig:
        """The run that trains a vision encoder to classify patches."""
        train = {"name": f"see_{seed}", "total_steps": self.see_steps, "monitor": "seen"}
        return self._run("global", seed, train, {"see_steps": self.see_steps})

    def variant_run(self, variant: str, seed: int, vision: str) -> PatchesTrainConfig:
        """The run of one variant; `vision` is the folder of a trained encoder."""
        changes: dict[str, Any] = {
            "see_steps": 0,
            "model.encoders.vision": vision,
            "model.encoders.backbone_lr": self.backbone_lr,
        }
        name = variant
        if variant.startswith("ratio_"):
            name = "open"
            changes["model.match.sparse_ratio"] = float(variant.removeprefix("ratio_"))
        train = {"name": f"{variant}_{seed}", "total_steps": self.steps, "monitor": "rsum"}
        return self._run(name, seed, train, changes)

    def _run(
        self, name: str, seed: int, train: dict[str, Any], changes: dict[str, Any]
    ) -> PatchesTrainConfig:
        # One evaluation, at the end: variants are evaluated on the test split after equal steps.
        steps = train["total_steps"]
        train |= {"seed": seed, "evaluate_every": steps, "checkpoint_every": steps}
        base = load_config(PatchesTrainConfig, f"patches/scenes_{name}", {"see_steps": 0})
        dotted = {f"train.{key}": value for key, value in train.items()}
        return base.replace(dotted | self.changes).replace(changes)


class Study:
    """All runs of a study, in one folder."""

    def __init__(self, config: StudyConfig, out: Path) -> None:
        self.config, self.out = config, out
        self.runs = [(name, seed) for seed in config.seeds for name in config.variants]
        device = PartialState().device  # where the loop trains
        assert device is not None
        self.device = device
        data = config.see_run(config.seeds[0]).data
        assert isinstance(data, ScenesDataConfig)
        self.source = SceneSource(data, device, dense=False, see=True)

    @cached_property
    def test(self) -> SceneSet:
        """The test scenes."""
        config = self.config
        sizes = config.test_images, config.test_captions
        return SceneSet(self.source.config.scenes, "test", *sizes, self.device)

    def run(self, workers: int = 1, report: Report = lambda *_: None) -> dict[str, Any]:
        """Train and evaluate the missing runs, `workers` at a time; return the summary."""
        # Spawned, as a forked process cannot use a GPU. If one dies, its lock is released and
        # another process takes its run.
        helpers = [
            get_context("spawn").Process(target=_help, args=(self.config, self.out), daemon=True)
            for _ in range(min(workers, len(self._missing())) - 1)
        ]
        for helper in helpers:
            helper.start()
        self.work(report)
        for helper in helpers:
            helper.join()
        results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self.config.variants}
        for variant, seed in self.runs:
            found = self._result(self._variant_run(variant, seed))
            assert found is not None
            results[variant][seed] = found
        return summarise(self.config.resamples, results)

    def work(self, report: Report = lambda *_: None) -> None:
        """Make runs until none is missing; wait for those of other processes."""
        while missing := self._missing():
            report(len(self.runs) - len(missing), "results")
            if not any(self._make(*run) for run in missing):
                time.sleep(_WAIT)
        report(len(self.runs), "results")

    def evaluate(self, model: RetrievalModel) -> dict[str, Any]:
        """Retrieval, pointing and leak of one model on the test scenes."""
        metrics = evaluate_set(model, self.test)
        found: dict[str, Any] = {
            "metrics": metrics.as_dict(),
            "per_scene": _per_scene(metrics, len(self.test)),
        }
        if isinstance(model.net, CrossSparseAggrNet):
            found["pointing"] = pointing(model, self.test)
            if model.uses_dense:
                found["leak"] = leak_test(model, self.test)
        return found

    def _missing(self) -> list[tuple[str, int]]:
        return [run for run in self.runs if self._result(self._variant_run(*run)) is None]

    def _see_run(self, seed: int) -> PatchesTrainConfig:
        return self.config.see_run(seed).replace({"train.out": self.out})

    def _variant_run(self, variant: str, seed: int) -> PatchesTrainConfig:
        vision = self._see_run(seed).train.folder / "model" / "vision"
        return self.config.variant_run(variant, seed, str(vision)).replace({"train.out": self.out})

    def _make(self, variant: str, seed: int) -> bool:
        """Make a run, or first its vision encoder; False if another process makes it."""
        see, run = self._see_run(seed), self._variant_run(variant, seed)
        has_vision = self._result(see) is not None
        config = run if has_vision else see
        with claimed(self.out / "locks" / config.train.name) as mine:
            if mine and self._result(config) is None:  # no other process has just finished it
                began = time.monotonic()
                source = self.source.beside(dense=config.model.match.dense, see=not has_vision)
                best = train_model(config, resume=True, source=source).best
                trained = time.monotonic()
                found = self._settings(config) | {"validation": best}
                if has_vision:
                    model = RetrievalModel.from_pretrained(config.train.folder, device=self.device)
                    found |= {"variant": variant, "seed": seed} | self.evaluate(model)
                found["seconds"] = {"train": trained - began, "test": time.monotonic() - trained}
                found["made"] = provenance("python -m benchmarks.patches.study", str(self.device))
                write_text(config.train.folder / RESULT, json_module.dumps(found) + "\n")
        return mine

    def _settings(self, config: PatchesTrainConfig) -> dict[str, Any]:
        """Everything that a result depends on, except folders, which may be moved."""
        no_folders = {"train.out": Path(), "model.encoders.vision": None}
        see = self.config.see_run(config.train.seed)
        return {
            "config": config.replace(no_folders).model_dump(mode="json"),
            "vision_config": see.model_dump(mode="json"),
            "test": [self.config.test_images, self.config.test_captions],
        }

    def _result(self, config: PatchesTrainConfig) -> dict[str, Any] | None:
        """The result of a run, if it exists and was made with these settings."""
        path = config.train.folder / RESULT
        if not path.is_file():
            return None
        with reading(path, "the result of a run; remove it to run again"):
            found = read_json(path)
            return found if found.items() >= self._settings(config).items() else None


def _help(config: StudyConfig, out: Path) -> None:
    Study(config, out).work()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock of a run; a lock ends with its process."""
    lock = FileLock.acquire(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _per_scene(metrics: RetrievalMetrics, num_scenes: int) -> list[float]:
    """Each scene's mean recall in points: its own as a query, and that of its captions."""
    image, text = (
        torch.stack([side.ranks < k for k in AT]).double().mean(0)
        for side in (metrics.image_to_text, metrics.text_to_image)
    )
    return (100.0 * (image + text.view(num_scenes, -1).mean(1)) / 2).tolist()


def run(
    config: Annotated[StudyConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/patches_study"),
    quick: bool = False,
    workers: Count = 1,
    json: bool = False,
) -> None:
    """Train and compare all variants; a repeated command only makes missing runs.

    Writes a run folder per variant and seed, and study.json: variants, paired differences with
    95 % intervals (over scenes and seeds), and which targets are reached.

    Args:
        out: The folder to write to.
        quick: Try the code on a CPU, in a folder `quick` inside; the numbers mean nothing.
        workers: Trainings at a time, each in a process of its own.
        json: Print one JSON document.
    """
    config, out = config.quick() if quick else config, study_folder(out, quick)
    study = Study(config, out)
    with ProgressBar("runs", len(study.runs)) as bar:
        found = study.run(workers, bar.update)
    head = provenance("python -m benchmarks.patches.study", str(study.device)) | {"quick": quick}
    document = head | {"config": config.model_dump(mode="json")} | found
    written = write_text(out / "study.json", json_module.dumps(document, indent=1) + "\n")
    print_result(document if json else _shown(found), json)
    if not json:
        print_end(quick, written)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Tables narrow enough to read."""
    columns = {
        "variant": "variant", "recall": "mean_recall", "i2t@1": "i2t_r1", "t2i@1": "t2i_r1",
        "points": "pointing_hit", "chance": "pointing_chance", "no leak": "leak_free",
        "s": "seconds",
    }  # fmt: skip
    rows = [{name: row.get(key) for name, key in columns.items()} for row in found["variants"]]
    return {
        "variants (recall: mean of the six recalls, points)": rows,
        "differences (points, 95 % interval)": found["comparisons"],
        "targets": [
            target | {"reached": "yes" if target["reached"] else "NOT REACHED"}
            for target in found["targets"]
        ],
    }


if __name__ == "__main__":
    raise SystemExit(run_script(run))
