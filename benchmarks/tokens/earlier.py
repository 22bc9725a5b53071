"""Results of an earlier study that still hold, so that only what is new has to be measured.

The tuning of a baseline holds if it tried the settings that would be tried now; a training holds if
its settings are the same. The unpruned model always answers again: it must agree with the file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tokens.config import StudyConfig
from benchmarks.tokens.summary import Results
from eligo.errors import InputError
from eligo.io.reading import read_object, reading
from eligo.tokens.inference.equal_cost import Matched
from eligo.tokens.inference.evaluate import BLIND, WHOLE

_SHARED = ("base", "points", "trials", "tuning_questions", "questions", "blind_scenes", "tiny")
_MOST_DIFFERENT = 0.002  # share of answers: other hardware or versions round differently


@dataclass(frozen=True)
class Earlier:
    """A result file of the study, and the settings of the present one."""

    path: Path
    config: StudyConfig
    document: Mapping[str, Any]
    results: Results

    @classmethod
    def read(cls, path: Path, config: StudyConfig) -> "Earlier":
        """Read a result file; raise if its questions or costs are others."""
        document = read_object(path, "benchmarks.tokens.study")
        now = config.model_dump(mode="json", include=set(_SHARED))
        with reading(path, "the results of the tokens study"):
            before = document["config"]
            results = Results.unpacked(document)
        for key in _SHARED:
            if before.get(key) != now[key]:
                raise InputError(
                    f"{path}: got {key} {before.get(key)}, expected {now[key]}, as in this study: "
                    "its answers cannot be compared; run without --earlier"
                )
        return cls(path, config, document, results)

    def has_training(self, name: str) -> bool:
        """Return whether a training has the same settings and answers of all its seeds."""
        now = self.config.trainings[name]
        before = self.document["config"]["trainings"].get(name)
        answered = all(f"{name}#{seed}" in self.results.right for seed in now.seeds)
        return answered and before == now.model_dump(mode="json")

    def tuning(self, name: str, point: str, now: Sequence[Matched]) -> dict[str, Any] | None:
        """Return the tuning of a baseline at a point, if it tried the same settings."""
        for entry in self.document["tuning"]:
            trials = entry["trials"]
            if (entry["baseline"], entry["point"]) == (name, point) and len(trials) == len(now):
                same = all(
                    trial["setting"] == matched.arrangement.name
                    and math.isclose(trial["spent"], matched.spent, rel_tol=1e-6)
                    for trial, matched in zip(trials, now, strict=True)
                )
                return entry if same and f"{name}@{point}" in self.results.right else None
        return None

    def extended(
        self, answers: Mapping[str, Any], tuned: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return answers of the present study with those of the file that still hold."""
        before = self.results
        if list(before.families) != list(answers["families"]):
            raise InputError(f"{self.path}: has other questions; run without --earlier")
        pairs = zip(before.right[WHOLE], answers["right"][WHOLE], strict=True)
        different = sum(old != new for old, new in pairs) / len(before.families)
        if different > _MOST_DIFFERENT:
            raise InputError(
                f"{self.path}: the unpruned model answers {different:.1%} of the questions "
                f"otherwise now, expected at most {_MOST_DIFFERENT:.1%}; run without --earlier"
            )
        kept = {f"{entry['baseline']}@{entry['point']}" for entry in tuned} | {"random@half"}
        kept |= {name for name in self.config.trainings if self.has_training(name)}
        names = [
            run
            for run in before.right
            if run not in (WHOLE, BLIND) and run.partition("#")[0].partition(",")[0] in kept
        ]
        keys = ("date", "hardware", "versions", "earlier")  # `earlier`: what it took from another
        about = {key: self.document[key] for key in keys if key in self.document}
        about |= {"variants": names, "different": different}
        return {
            **answers,
            "measured": answers["measured"] | {"earlier": about},
            "right": {name: before.right[name] for name in names} | answers["right"],
            "cost": {name: before.cost[name] for name in names} | answers["cost"],
        }
