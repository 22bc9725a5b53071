"""Study on generated scenes: the accuracy cost of the selection, and whether it finds objects.

    python -m benchmarks.patches.study --workers 6 --out runs/patches_study

For every seed a vision encoder first learns to classify patches; then every variant trains from it
for the same steps, on the same scenes in the same order, and is evaluated on test scenes with
attribute pairs that no training scene has. Finished runs are not repeated. Several processes may
share a folder (`--workers`, or several commands): each takes the next free run. One of these small
models leaves most of a GPU idle.
"""

import json as json_module
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from accelerate import PartialState
from pydantic import Field

from benchmarks.patches.leak import leak_test
from benchmarks.patches.pointing import pointing
from benchmarks.patches.summary import summarise
from benchmarks.studies import helpers, print_end, run_once, study_folder, work_through
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.io.files import write_text
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
Variant = Literal[
    "global", "filip", "open", "relevant", "open_dense", "paper",
    "ratio_0.25", "ratio_0.75", "ratio_1.0",
]  # fmt: skip
"""Global vectors; FILIP; LAPS (ratio 0.5), the same network with our score and free heads, LAPS
with dense text; SEPS; LAPS at other ratios."""
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
        """Return a quick test on a CPU; its numbers are meaningless."""
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
        """Return the run that trains a vision encoder to classify patches."""
        train = {"name": f"see_{seed}", "total_steps": self.see_steps, "monitor": "seen"}
        return self._run("global", seed, train, {"see_steps": self.see_steps})

    def variant_run(self, variant: str, seed: int, vision: str) -> PatchesTrainConfig:
        """Return the run of one variant; `vision` is the folder of a trained encoder."""
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
        device = PartialState().device  # where the training loop runs
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
        with helpers(min(workers, len(self._missing())) - 1, _work, self.config, self.out):
            self.work(report)
        results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self.config.variants}
        for variant, seed in self.runs:
            result = self._result(self._variant_run(variant, seed))
            assert result is not None
            results[variant][seed] = result
        return summarise(self.config.resamples, results)

    def work(self, report: Report = lambda *_: None) -> None:
        """Run what is missing; wait for the runs of other processes."""

        def missing() -> list[tuple[str, int]]:
            found = self._missing()
            report(len(self.runs) - len(found), "results")
            return found

        work_through(missing, lambda run: self._try_run(*run))

    def evaluate(self, model: RetrievalModel) -> dict[str, Any]:
        """Measure retrieval, pointing and leak of one model on the test scenes."""
        metrics = evaluate_set(model, self.test)
        result: dict[str, Any] = {
            "metrics": metrics.as_dict(),
            "per_scene": _per_scene(metrics, len(self.test)),
        }
        if isinstance(model.net, CrossSparseAggrNet):
            result["pointing"] = pointing(model, self.test)
            if model.uses_dense:
                result["leak"] = leak_test(model, self.test)
        return result

    def _missing(self) -> list[tuple[str, int]]:
        return [run for run in self.runs if self._result(self._variant_run(*run)) is None]

    def _see_run(self, seed: int) -> PatchesTrainConfig:
        return self.config.see_run(seed).replace({"train.out": self.out})

    def _variant_run(self, variant: str, seed: int) -> PatchesTrainConfig:
        vision = self._see_run(seed).train.folder / "model" / "vision"
        return self.config.variant_run(variant, seed, str(vision)).replace({"train.out": self.out})

    def _try_run(self, variant: str, seed: int) -> bool:
        """Do a run, or first train its vision encoder; return False if another process does it."""
        see, run = self._see_run(seed), self._variant_run(variant, seed)
        has_vision = self._result(see) is not None
        config = run if has_vision else see
        return run_once(
            self.out / "locks" / config.train.name,
            lambda: self._result(config) is not None,
            lambda: self._train(config, variant, seed, has_vision=has_vision),
        )

    def _train(
        self, config: PatchesTrainConfig, variant: str, seed: int, *, has_vision: bool
    ) -> None:
        """Train a vision encoder, or a variant that has one, which is then evaluated."""
        started = time.monotonic()
        source = self.source.shared_with(dense=config.model.match.dense, see=not has_vision)
        best = train_model(config, resume=True, source=source).best
        trained = time.monotonic()
        result = self._settings(config) | {"validation": best}
        if has_vision:
            model = RetrievalModel.from_pretrained(config.train.folder, device=self.device)
            result |= {"variant": variant, "seed": seed} | self.evaluate(model)
        result["seconds"] = {"train": trained - started, "test": time.monotonic() - trained}
        result["made"] = provenance(str(self.device))
        write_text(config.train.folder / RESULT, json_module.dumps(result) + "\n")

    def _settings(self, config: PatchesTrainConfig) -> dict[str, Any]:
        """Return everything that a result depends on, except folders, which may be moved."""
        no_folders = {"train.out": Path(), "model.encoders.vision": None}
        see = self.config.see_run(config.train.seed)
        return {
            "config": config.replace(no_folders).model_dump(mode="json"),
            "vision_config": see.model_dump(mode="json"),
            "test": [self.config.test_images, self.config.test_captions],
        }

    def _result(self, config: PatchesTrainConfig) -> dict[str, Any] | None:
        """Return the result of a run, if it exists and has these settings."""
        path = config.train.folder / RESULT
        if not path.is_file():
            return None
        with reading(path, "the result of a run; remove it to run again"):
            result = read_json(path)
            return result if result.items() >= self._settings(config).items() else None


def _work(config: StudyConfig, out: Path) -> None:
    Study(config, out).work()


def _per_scene(metrics: RetrievalMetrics, num_scenes: int) -> list[float]:
    """Return each scene's mean recall in points, as a query and of its captions."""
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
    """Train and compare all variants; a repeated command only does missing runs.

    Writes a run folder per variant and seed, and study.json: variants, paired differences with
    95 % intervals (over scenes and seeds), and which targets are reached.

    Args:
        out: The folder to write to.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        workers: Trainings at a time, each in its own process.
        json: Print one JSON document.
    """
    config, out = config.quick() if quick else config, study_folder(out, quick)
    study = Study(config, out)
    with ProgressBar("runs", len(study.runs)) as bar:
        summary = study.run(workers, bar.update)
    head = provenance(str(study.device)) | {"quick": quick}
    document = head | {"config": config.model_dump(mode="json")} | summary
    written = write_text(out / "study.json", json_module.dumps(document, indent=1) + "\n")
    print_result(document if json else _tables(summary), json)
    if not json:
        print_end(quick, written)


def _tables(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary as narrow tables."""
    columns = {
        "variant": "variant", "recall": "mean_recall", "i2t@1": "i2t_r1", "t2i@1": "t2i_r1",
        "points": "pointing_hit", "chance": "pointing_chance", "no leak": "leak_free",
        "s": "seconds",
    }  # fmt: skip
    rows = [{name: row.get(key) for name, key in columns.items()} for row in summary["variants"]]
    return {
        "variants (recall: mean of the six recalls, points)": rows,
        "differences (points, 95 % interval)": summary["comparisons"],
        "targets": [
            target | {"reached": "yes" if target["reached"] else "NOT REACHED"}
            for target in summary["targets"]
        ],
    }


if __name__ == "__main__":
    raise SystemExit(run_script(run))
