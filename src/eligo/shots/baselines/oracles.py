"""Oracles: selectors that know the value of each list of examples for the query.

`StaticOracle` ranks single examples perfectly, so no selector without a state can beat it.
`BeamOracle` minus `StaticOracle` is what a selector can gain by reacting to its own picks.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.selector import PoolSelector, ScoredPicks
from eligo.shots.teacher.beam_search import beam_search


@runtime_checkable
class Utility(Protocol):
    """The value of a list of examples for a query, such as the log-probability of the answer."""

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """Return the value of `(*prefix, c)`, in order of choice, for each candidate c."""
        ...


class UtilityTable:
    """Known values: `table[query id][ids in order of choice]`."""

    def __init__(self, table: Mapping[str, Mapping[tuple[str, ...], float]]) -> None:
        self.table = table

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """Return the value of `(*prefix, c)` for each candidate c."""
        try:
            known = self.table[query.id]
            return torch.tensor([known[(*prefix, name)] for name in candidates])
        except KeyError as error:
            raise InputError(
                f"UtilityTable: has no value {error} of query {query.id!r} after {prefix}; score "
                "it, or give fewer candidates"
            ) from None


class _Oracle(PoolSelector):
    sees_answer: ClassVar[bool] = True

    def __init__(self, utility: Utility) -> None:
        self.utility = utility

    def _first_values(self, query: Query, rows: Tensor) -> Tensor:
        names = self.pool.names(rows)
        return self.utility.values(query, (), names).float() if names else torch.zeros(0)


class StaticOracle(_Oracle):
    """The best single examples."""

    kind: ClassVar[str] = "static_oracle"

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        scores = self._first_values(query, rows)
        return ScoredPicks(ops.top_k(scores, shots), scores)


class BeamOracle(_Oracle):
    """The best list of a beam search."""

    kind: ClassVar[str] = "beam_oracle"

    def __init__(self, utility: Utility, beam: int = 5) -> None:
        super().__init__(utility)
        self.beam = beam

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        names = self.pool.names(rows)

        def extend(prefix: tuple[int, ...], candidates: Sequence[int]) -> Tensor:
            before = tuple(names[position] for position in prefix)
            return self.utility.values(query, before, [names[position] for position in candidates])

        search = beam_search(extend, len(names), shots, self.beam)
        first = search.scored[0].values if search.scored else self._first_values(query, rows)
        return ScoredPicks(torch.tensor(search.beams[0].picks, dtype=torch.int64), first)


class GreedyOracle(BeamOracle):
    """The best next example at each step."""

    kind: ClassVar[str] = "greedy_oracle"

    def __init__(self, utility: Utility) -> None:
        super().__init__(utility, beam=1)
