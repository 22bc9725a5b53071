"""Oracles: selectors that see what each list of examples is worth to the query.

`StaticOracle` is a perfect ranker of single examples: what no selector without a state can beat.
`BeamOracle` minus `StaticOracle` is what is to be gained by reacting to one's own picks.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from eligo import ops
from eligo.shots.baselines.utility import Utility
from eligo.shots.data.query import Query
from eligo.shots.selector import Choice, PoolSelector
from eligo.shots.teacher.beam_search import beam_search


class _Oracle(PoolSelector):
    sees_answer: ClassVar[bool] = True

    def __init__(self, utility: Utility) -> None:
        self.utility = utility

    def _first(self, query: Query, rows: Tensor) -> Tensor:
        names = self.pool.names(rows)
        return self.utility.values(query, (), names).float() if names else torch.zeros(0)


class StaticOracle(_Oracle):
    """The best single examples, side by side."""

    kind: ClassVar[str] = "static_oracle"

    def _choose(self, query: Query, rows: Tensor, shots: int) -> Choice:
        scores = self._first(query, rows)
        return Choice(ops.top_k(scores, shots), scores)


class BeamOracle(_Oracle):
    """The best list that a beam search finds."""

    kind: ClassVar[str] = "beam_oracle"

    def __init__(self, utility: Utility, beam: int = 5) -> None:
        super().__init__(utility)
        self.beam = beam

    def _choose(self, query: Query, rows: Tensor, shots: int) -> Choice:
        names = self.pool.names(rows)

        def extend(prefix: tuple[int, ...], candidates: Sequence[int]) -> Tensor:
            told = tuple(names[place] for place in prefix)
            return self.utility.values(query, told, [names[place] for place in candidates])

        found = beam_search(extend, len(names), shots, self.beam)
        first = found.scored[0].values if found.scored else self._first(query, rows)
        return Choice(torch.tensor(found.beams[0].picks, dtype=torch.int64), first)


class GreedyOracle(BeamOracle):
    """The best next example, one after the other."""

    kind: ClassVar[str] = "greedy_oracle"

    def __init__(self, utility: Utility) -> None:
        super().__init__(utility, beam=1)
