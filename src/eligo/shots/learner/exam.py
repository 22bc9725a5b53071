"""The whole exam: health, teach, train, measure, judge; started again, it makes what is missing."""

import hashlib
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch

from eligo.errors import EligoError
from eligo.io.files import clear_unfinished
from eligo.io.locks import one_writer
from eligo.shots.learner.arms import jobs, train_arms
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.health import is_healthy
from eligo.shots.learner.measure import Chosen, Columns, ExamSet, bits
from eligo.shots.learner.rows import (
    BASELINES,
    BEAM,
    FIXED,
    STATIC,
    TUNED,
    ZERO,
    balances,
    baseline,
    oracle,
    picked_by,
    picked_by_model,
    tuned_mmr,
)
from eligo.shots.learner.stages import Stages, Tell
from eligo.shots.learner.verdict import Runs, judge

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
        with one_writer(self.stages.out):
            clear_unfinished(self.stages.out)
            return self._run(part, workers)

    def _run(self, part: Part, workers: int) -> dict[str, Any]:
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
        asked = self.stages.asked("test")
        domains = asked.world.queries.domains or []
        lexicons = [domains[row] for row in asked.queries.tolist()]
        found = judge(rows, health, self.config.shots, lexicons, self.config.resamples)
        right = {
            f"{row}#{seed}@{shots}": bits(columns["accuracy"])
            for row, runs in rows.items()
            for seed, run in enumerate(runs)
            for shots, columns in run.items()
        }
        tuned = {TUNED: balances(self.stages)}
        return {"health": health, "tuned": tuned, **found, "right": right}

    # -------------------------------------------------------------- measure

    @cached_property
    def test(self) -> ExamSet:
        """The test queries with what the teacher found for them."""
        stages, config = self.stages, self.config
        return ExamSet(
            stages.scorer("test"), stages.asked("test"), stages.lessons("test"), config.shots,
            config.beam,
        )  # fmt: skip

    def measured(self) -> dict[str, Runs]:
        """Every row of the table, run by run."""
        trained = {f"{arm}_{seed}": arm for arm, seed in jobs(self.config)}
        names = {name: name for name in (ZERO, *BASELINES)} | trained | {STATIC: STATIC, BEAM: BEAM}
        rows: dict[str, Runs] = {}
        for row in (ZERO, *BASELINES, *self.config.arms, STATIC, BEAM):
            rows[row] = []
        for number, (name, row) in enumerate(names.items()):
            self.tell("measure", number, len(names))
            key: dict[str, Any] = {"shots": self.config.shots}
            if name == FIXED:
                key["fixed_queries"] = self.config.fixed_queries
            if name == TUNED:
                key["balances"] = balances(self.stages)
            if name in trained:
                best = self.selectors / name / "best" / "pointer.safetensors"
                key["weights"] = hashlib.sha256(best.read_bytes()).hexdigest()[:16]
            look = partial(self._measure, name)
            rows[row].append(self.stages.kept(f"measured/{name}.json", key, look))
        self.tell("measure", len(names), len(names))
        return rows

    def _measure(self, name: str) -> dict[str, Columns]:
        return self.test.measure(self._chosen(name))

    def _chosen(self, name: str) -> Chosen:
        shots, most = self.config.shots, max(self.config.shots)
        if name == ZERO:
            return Chosen(dict.fromkeys(shots, self.test.asked.candidates[:, :0]), None)
        if name in (STATIC, BEAM):
            return oracle(name, self.test)
        if name == TUNED:
            return tuned_mmr(self.stages, self.test)
        if name in BASELINES:
            selector = baseline(name, self.stages)
            found = picked_by(selector, self.test.lessons, self.test.asked, most)
        else:
            found = picked_by_model(self.selectors / name, self.test, most, self.device)
        return Chosen.nested(*found, shots)
