"""Answers of one host to the same questions under many plans, by several processes.

Plans are taken in parts, each by the next free process. The answers of a part are kept in a file:
an interrupted run loses only the parts that were being answered.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from benchmarks.studies import helpers, run_once, work_through
from eligo.io.files import write_text
from eligo.io.reading import read_json
from eligo.tokens.config import HostConfig
from eligo.tokens.data.examples import FileExamples
from eligo.tokens.inference.evaluate import answer_questions
from eligo.tokens.inference.load import load_host
from eligo.tokens.metrics import as_bits
from eligo.tokens.plan import Plan
from eligo.vqa import VqaExample

NEW_TOKENS = 5
"""Most tokens of an answer."""
_PART = 8  # plans that share the decoding of the photos


def load_photo_host(folder: Path, dtype: Literal["float32", "bfloat16"], device: str) -> Any:
    """Return a host and its processor."""
    return load_host(HostConfig(model=str(folder), dtype=dtype), device=device)


@dataclass(frozen=True)
class PhotoAnswers:
    """Questions to a host under several plans."""

    host: Path
    dtype: Literal["float32", "bfloat16"]
    device: str
    rows: Sequence[VqaExample]
    plans: Mapping[str, Plan]
    batch_size: int
    folder: Path
    """Where the answers are kept; another one for other questions, plans or weights."""

    def run(self, workers: int, report: Callable[[int, int], None]) -> tuple[dict, dict]:
        """Return the right answers as bits and the costs, by plan; `report` gets parts and all."""
        with helpers(min(workers, len(self._missing())) - 1, self.work):
            self.work(report)
        right, cost = {}, {}
        for part in range(self.num_parts):
            stored = read_json(self._file(part))
            right |= stored["right"]
            cost |= stored["cost"]
        return {name: right[name] for name in self.plans}, cost

    @property
    def num_parts(self) -> int:
        """Number of files."""
        return -(-len(self.plans) // _PART)

    def work(self, report: Callable[[int, int], None] = lambda *_: None) -> None:
        """Answer the missing parts, beside other processes."""

        def missing() -> list[int]:
            found = self._missing()
            report(self.num_parts - len(found), self.num_parts)
            return found

        work_through(missing, self._attempt)

    def _missing(self) -> list[int]:
        return [part for part in range(self.num_parts) if not self._file(part).is_file()]

    def _file(self, part: int) -> Path:
        return self.folder / f"{part}.json"

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        return load_photo_host(self.host, self.dtype, self.device)

    def _attempt(self, part: int) -> bool:
        return run_once(
            self.folder / f"{part}.lock", self._file(part).is_file, lambda: self._answer(part)
        )

    def _answer(self, part: int) -> None:
        names = list(self.plans)[part :: self.num_parts]  # slow methods are neighbours
        answers = answer_questions(
            *self._loaded, FileExamples(self.rows), {n: self.plans[n] for n in names},
            batch_size=self.batch_size, max_new_tokens=NEW_TOKENS,
        )  # fmt: skip
        right = {name: as_bits(bits) for name, bits in answers.right.items()}
        text = json.dumps({"right": right, "cost": answers.cost})
        write_text(self._file(part), text + "\n")
