"""Random examples, and none at all (zero-shot)."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.pool.sampler import generator
from eligo.shots.selector import PoolSelector, ScoredPicks


class ZeroShot(PoolSelector):
    """No examples."""

    kind: ClassVar[str] = "zero_shot"

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:  # noqa: ARG002
        return ScoredPicks(rows[:0], torch.zeros(len(rows)))


class Random(PoolSelector):
    """Random examples; the same for the same query."""

    kind: ClassVar[str] = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        # Drawn for the whole pool, so that a row's score does not depend on which are allowed.
        drawn = torch.rand(len(self.pool), generator=generator(self.seed, query.id))
        scores = drawn[rows]
        return ScoredPicks(scores.argsort(descending=True, stable=True)[:shots], scores)

    def _settings(self) -> dict[str, Any]:
        return {"seed": self.seed}
