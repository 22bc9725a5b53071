"""The whole study: health, teach, train, measure, summarise."""

import hashlib
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.shots.config import Part, StudyConfig
from benchmarks.shots.expected import TRAINED, expected_figures, training_summary
from benchmarks.shots.measure import COLUMNS, NEAR, Columns, EvaluationSet, bits, is_healthy
from benchmarks.shots.methods import BASELINES, BEAM, FIXED, STATIC, TUNED, ZERO, balances, choose
from benchmarks.shots.stages import Report, Stages
from benchmarks.shots.summary import Runs, summarise
from eligo.errors import EligoError
from eligo.io.files import clear_unfinished, write_text
from eligo.io.locks import one_writer
from eligo.io.reading import read_json, reading
from eligo.shots.config import ShotsTrainConfig
from eligo.shots.teacher.shards import mean_difference
from eligo.shots.training.train import train_selector


class Study:
    """All stages, in one folder."""

    def __init__(
        self, config: StudyConfig, out: Path, device: torch.device, report: Report = lambda *_: None
    ) -> None:
        self.config, self.report = config, report
        self.stages = Stages(config, out, device, report)
        self.selectors = self.stages.out / "selectors"

    def run(self, part: Part = "all", workers: int = 1) -> dict[str, Any]:
        """Run up to a part, and return its results."""
        with one_writer(self.stages.out):
            clear_unfinished(self.stages.out)
            return self._run(part, workers)

    def _run(self, part: Part, workers: int) -> dict[str, Any]:
        health = self.stages.health()
        if self.config.must_be_healthy and not is_healthy(health):
            raise EligoError(
                f"this learner is not fit for the study: {health}; expected all three checks to be "
                "true: train it longer, or continue anyway with --no_must_be_healthy"
            )
        if part == "health":
            return {"health": health}
        taught = self.stages.teach("train")
        self.stages.teach("test")
        labels = {"examples that differ between beams": mean_difference(taught)}
        if part == "teach":
            return {"health": health, "labels": labels, "taught": taught}
        train_variants(self.config, taught, self.selectors, workers=workers, report=self.report)
        if part == "train":
            return {"health": health, "selectors": self.selectors}
        rows = self.measured()
        test = self.stages.queries("test")
        domains = test.world.queries.domains or []
        lexicons = [domains[row] for row in test.rows.tolist()]
        summary = summarise(rows, health, self.config.shots, lexicons, self.config.resamples)
        right = {
            f"{row}#{seed}@{shots}": bits(columns["accuracy"])
            for row, runs in rows.items()
            for seed, run in enumerate(runs)
            for shots, columns in run.items()
        }
        tuned = {TUNED: balances(self.stages)}
        training = {
            variant: training_summary(
                [self.selectors / f"{variant}_{seed}" for seed in self.config.seeds]
            )
            for variant in self.config.variants
        }
        figures = expected_figures(summary["tables"][str(self.config.shots[0])], training)
        return {
            "health": health, "labels": labels, "tuned": tuned, "training": training,
            "near best": self.near_best(), "expected figures": figures, **summary, "right": right,
        }  # fmt: skip

    @cached_property
    def test(self) -> EvaluationSet:
        """The test queries with the teacher's results."""
        stages, queries = self.stages, self.stages.queries("test")
        return EvaluationSet(
            stages.scorer("test"), queries.rows, queries.candidates, stages.results("test"),
            self.config.shots, self.config.beam,
        )  # fmt: skip

    def near_best(self) -> list[dict[str, float]]:
        """How many lists are nearly as good as the best one, for each number of shots."""
        shots = self.config.shots
        key = {"shots": shots, "near": NEAR}
        return self.stages.kept("near_best.json", key, lambda: [*map(self.test.near_best, shots)])

    def measured(self) -> dict[str, Runs]:
        """Measure every row of the table, run by run."""
        trained = {f"{variant}_{seed}": variant for variant, seed in jobs(self.config)}
        names = {name: name for name in (ZERO, *BASELINES)} | trained | {STATIC: STATIC, BEAM: BEAM}
        rows: dict[str, Runs] = {
            row: [] for row in (ZERO, *BASELINES, *self.config.variants, STATIC, BEAM)
        }
        for number, (name, row) in enumerate(names.items()):
            self.report("measure", number, len(names))
            key: dict[str, Any] = {"shots": self.config.shots, "columns": COLUMNS}
            if name == FIXED:
                key["fixed_queries"] = self.config.fixed_queries
            if name == TUNED:
                key["balances"] = balances(self.stages)
            if name in trained:
                best = self.selectors / name / "best" / "pointer.safetensors"
                key["weights"] = hashlib.sha256(best.read_bytes()).hexdigest()[:16]
            measure = partial(self._measure, name)
            rows[row].append(self.stages.kept(f"measured/{name}.json", key, measure))
        self.report("measure", len(names), len(names))
        return rows

    def _measure(self, name: str) -> dict[str, Columns]:
        return self.test.measure(choose(name, self.stages, self.test, self.selectors))


def jobs(config: StudyConfig) -> list[tuple[str, int]]:
    """Variant and seed of every training."""
    return [(variant, seed) for seed in config.seeds for variant in config.variants]


def train_variants(
    config: StudyConfig, taught: Path, out: Path, *, workers: int, report: Report
) -> None:
    """Run every training that has not finished yet; an interrupted one is resumed."""
    runs = [config.run(variant, seed, taught, out) for variant, seed in jobs(config)]
    left = [run for run in runs if not is_trained(run)]
    done = len(runs) - len(left)
    report("train", done, len(runs))
    if workers == 1:
        for number, run in enumerate(left, done + 1):
            train_variant(run)
            report("train", number, len(runs))
    elif left:
        # Spawned, because a forked process cannot use the GPU.
        # One thread each: by default every worker would start one per core.
        with ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
        ) as processes:
            futures = [processes.submit(train_variant, run) for run in left]
            for number, future in enumerate(as_completed(futures), done + 1):
                future.result()
                report("train", number, len(runs))


def train_variant(run: ShotsTrainConfig) -> None:
    """Train a selector, and mark its folder as finished."""
    result = train_selector(run, resume=True)
    steps = {"best_step": result.best_step, "last_step": result.last_step, "best": result.best}
    text = json.dumps({**steps, "config": _portable(run)}, indent=1) + "\n"
    write_text(result.folder / TRAINED, text)


def is_trained(run: ShotsTrainConfig) -> bool:
    """Whether a training with the same settings has finished."""
    mark = run.train.folder / TRAINED
    if not mark.is_file():
        return False
    with reading(mark, "the result of a training; remove it to train again"):
        return read_json(mark).get("config") == _portable(run)


def _portable(run: ShotsTrainConfig) -> dict[str, Any]:
    """The settings without folders, which may move."""
    settings = run.model_dump(mode="json")
    del settings["train"]["out"], settings["data"]["path"]
    return settings
