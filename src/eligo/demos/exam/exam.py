"""The whole exam: health, teach, train, measure, judge; started again, it makes what is missing."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch

from eligo.demos.data.records import Record
from eligo.demos.exam.arms import jobs, train_arms
from eligo.demos.exam.config import Arm, ExamConfig
from eligo.demos.exam.health import is_healthy
from eligo.demos.exam.measure import bits, measure
from eligo.demos.exam.rows import (
    BEAM,
    RIVALS,
    STATIC,
    ZERO,
    Chosen,
    chosen_by,
    chosen_by_model,
    oracle,
    rival,
)
from eligo.demos.exam.stages import Stages, Tell
from eligo.demos.exam.verdict import Runs, judge
from eligo.demos.teach.read import read_records
from eligo.demos.teach.teacher import Lesson
from eligo.errors import EligoError

Part = Literal["all", "health", "teach", "train", "measure", "analytic"]


class Exam:
    """All of it, in one folder."""

    def __init__(
        self, config: ExamConfig, out: Path, device: torch.device, tell: Tell = lambda *_: None
    ) -> None:
        self.config, self.device, self.tell = config, device, tell
        self.stages = Stages(config, out, device, tell)
        self.selectors = self.stages.out / "selectors"

    def run(self, part: Part = "all", workers: int = 1) -> dict[str, Any]:
        """Up to a part; what it found."""
        health = self.stages.health()
        if self.config.must_be_healthy and not is_healthy(health):
            raise EligoError(
                f"the exam is none with this learner: {health}; expected all three to be true: "
                "train the learner longer, or give --no_must_be_healthy to see what comes out"
            )
        if part == "health":
            return {"health": health}
        taught = self.stages.teach("train")
        self.stages.teach("test")
        if part == "teach":
            return {"health": health, "taught": taught}
        train_arms(self.config, taught, self.selectors, workers=workers, tell=self.tell)
        if part == "train":
            return {"health": health, "selectors": self.selectors}
        rows = self.measured()
        found = judge(rows, health, self.config.shots, self.config.resamples)
        right = {
            f"{row}#{seed}@{shots}": bits(columns["accuracy"])
            for row, runs in rows.items()
            for seed, run in enumerate(runs)
            for shots, columns in run.items()
        }
        return {"health": health, **found, "right": right}

    # -------------------------------------------------------------- measure

    def measured(self) -> dict[str, Runs]:
        """Every row of the table, run by run."""
        trained = [f"{arm}_{seed}" for arm, seed in jobs(self.config)]
        names = [ZERO, *RIVALS, *trained, STATIC, BEAM]
        rows: dict[str, Runs] = {name: [] for name in (ZERO, *RIVALS, *self.config.arms)}
        rows |= {STATIC: [], BEAM: []}
        lessons: list[Lesson] = []
        for number, name in enumerate(names):
            self.tell("measure", number, len(names))
            lessons = lessons or self.stages.lessons("test")
            row = name.rpartition("_")[0] if name in trained else name
            rows[row].append(self._row(name, row, lessons))
        self.tell("measure", len(names), len(names))
        return rows

    def _row(self, name: str, row: str, lessons: list[Lesson]) -> Any:
        key: dict[str, Any] = {"shots": self.config.shots}
        best = self.selectors / name / "best" / "pointer.safetensors"
        if name != row:
            key["weights"] = hashlib.sha256(best.read_bytes()).hexdigest()[:16]

        def look() -> dict[str, Any]:
            stages = self.stages
            chosen = self._chosen(name, row, lessons)
            return measure(
                chosen, stages.scorer("test"), stages.asked("test"), lessons, self.config.beam
            )

        return self.stages.kept(f"measured/{name}.json", key, look)

    def _chosen(self, name: str, row: str, lessons: Sequence[Lesson]) -> Chosen:
        shots, most = self.config.shots, max(self.config.shots)
        asked = self.stages.asked("test")
        if name == ZERO:
            return Chosen(dict.fromkeys(shots, asked.candidates[:, :0]), None)
        if name in (STATIC, BEAM):
            return oracle(name, lessons, shots, self.config.beam)
        if name in RIVALS:
            found = chosen_by(rival(name, self.stages, self._validation()), asked, lessons, most)
        else:
            seed = int(name.rpartition("_")[2])
            config = self.config.run(cast(Arm, row), seed, Path(), self.selectors)
            model = config.model.replace({"d_model": asked.world.pool.vectors.shape[1]})
            folder = config.train.folder / "best"
            found = chosen_by_model(model, folder, asked, most, self.device)
        return Chosen.nested(found.picks[most], found.scores, shots)

    def _validation(self) -> Callable[[], list[Record]]:
        stages = self.stages
        return lambda: read_records(stages.teach("validation"), *stages.embed("validation")).records
