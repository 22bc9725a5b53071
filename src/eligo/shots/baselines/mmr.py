"""MMR: maximal marginal relevance (Carbonell and Goldstein 1998)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.selector import PoolSelector, ScoredPicks

LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class MMR(PoolSelector):
    """Similar to the query, unlike each other: `l cos(q, c) - (1 - l) max_{s picked} cos(c, s)`.

    `balance` is lambda; with None, `fit` takes the one whose picks agree best with the records.

    >>> MMR(balance=0.5).kind
    'mmr'
    """

    kind: ClassVar[str] = "mmr"

    def __init__(self, balance: float | None = None) -> None:
        if balance is not None and not 0 <= balance <= 1:
            raise InputError(f"MMR: got balance {balance}, expected a lambda in [0, 1], or None")
        self.balance = balance

    def _learn(self, records: Sequence[Record]) -> None:
        if self.balance is not None:
            return
        if not records:
            raise InputError("MMR: has no records to tune lambda on; give MMR(balance=0.5)")
        agreement = {balance: self._agreement(balance, records) for balance in LAMBDAS}
        self.balance = max(agreement, key=lambda balance: agreement[balance])  # ties: the smaller

    def _agreement(self, balance: float, records: Sequence[Record]) -> float:
        """Return the mean share of the records' picks that this lambda picks too."""
        trial, shares = MMR(balance).with_pool(self.pool), []
        for record in records:
            picks = trial.select(record.query, len(record.picks), candidates=record.candidates)
            shared = set(self.pool.picked(picks)) & set(record.picks)
            shares.append(len(shared) / max(1, len(record.picks)))
        return sum(shares) / len(shares)

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        assert self.balance is not None
        vectors = self.pool.vectors[rows]
        relevance = vectors @ query.vector
        picks = ops.greedy_mmr(relevance, vectors, min(shots, len(rows)), self.balance)
        return ScoredPicks(picks, relevance)

    def _settings(self) -> dict[str, Any]:
        return {"balance": self.balance}
