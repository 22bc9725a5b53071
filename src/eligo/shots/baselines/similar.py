"""Selectors by cosine of embeddings: the nearest, the nearest that differ, a determinantal set.

- KNN: the k nearest, RICES (Yang et al. 2022).
- MMR: maximal marginal relevance (Carbonell and Goldstein 1998); its lambda is tuned on records.
- DPP: greedy MAP among the 100 nearest, with the kernel of OpenICL (Wu et al. 2023):
  `L_ij = r_i s_ij r_j`, s and the relevance mapped from cosines to [0, 1], `r = exp(rel / 2a)`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.selector import Choice, PoolSelector

LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class KNN(PoolSelector):
    """The examples most like the query."""

    kind: ClassVar[str] = "knn"

    def _choose(self, query: Query, rows: Tensor, shots: int) -> Choice:
        scores = self.pool.vectors[rows] @ query.vector
        return Choice(ops.top_k(scores, shots), scores)


class MMR(PoolSelector):
    """Like the query, unlike each other: `l cos(q, c) - (1 - l) max_{s picked} cos(c, s)`.

    `fit` takes the lambda whose picks agree best with those of the records (None: keep ours).
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
        found = {balance: _agreement(self, balance, records) for balance in LAMBDAS}
        self.balance = max(found, key=lambda balance: found[balance])  # ties: the smaller

    def _choose(self, query: Query, rows: Tensor, shots: int) -> Choice:
        assert self.balance is not None
        vectors = self.pool.vectors[rows]
        relevance = vectors @ query.vector
        return Choice(greedy_mmr(relevance, vectors, shots, self.balance), relevance)

    def _settings(self) -> dict[str, Any]:
        return {"balance": self.balance}


def greedy_mmr(
    relevance: Float[Tensor, " candidates"],
    vectors: Float[Tensor, "candidates dim"],
    shots: int,
    balance: float,
) -> Int[Tensor, " picks"]:
    """`argmax_c l rel_c - (1 - l) max_{s in S} cos(c, s)`, one after the other; first by relevance.

    Without the candidates' similarity matrix: a pool may be large.

    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    >>> greedy_mmr(torch.tensor([0.9, 0.89, 0.5]), vectors, 2, 0.5)
    tensor([0, 2])
    """
    free = torch.ones_like(relevance, dtype=torch.bool)
    redundancy = torch.full_like(relevance, -torch.inf)
    picks: list[Tensor] = []
    for _ in range(min(shots, len(relevance))):
        scores = balance * relevance
        if picks:
            scores = scores - (1 - balance) * redundancy
        pick = ops.top_k(scores if picks else relevance, 1, free)
        picks.append(pick)
        free = free & ~ops.kept_mask(pick, len(free))
        redundancy = torch.maximum(redundancy, vectors @ vectors[pick].squeeze(0))
    return torch.cat(picks) if picks else relevance.new_zeros(0, dtype=torch.int64)


def _agreement(selector: MMR, balance: float, records: Sequence[Record]) -> float:
    """Mean share of the records' picks that this lambda picks too."""
    trial = MMR(balance)
    trial._pool = selector.pool
    shares = []
    for record in records:
        picks = trial.select(record.query, len(record.picks), candidates=record.candidates)
        found = set(selector.pool.picked(picks)) & set(record.picks)
        shares.append(len(found) / max(1, len(record.picks)))
    return sum(shares) / len(shares)


class DPP(PoolSelector):
    """A set that is relevant and spread out, among the `top` nearest."""

    kind: ClassVar[str] = "dpp"

    def __init__(self, top: int = 100, scale: float = 0.1) -> None:
        if top < 1 or scale <= 0:
            raise InputError(f"DPP: got top {top}, scale {scale}; expected >= 1 and > 0")
        self.top, self.scale = top, scale

    def _choose(self, query: Query, rows: Tensor, shots: int) -> Choice:
        vectors = self.pool.vectors[rows]
        cosines = vectors @ query.vector
        near = ops.top_k(cosines, min(max(self.top, shots), len(rows)))
        kernel = dpp_kernel(cosines[near], vectors[near], self.scale)
        return Choice(near[ops.greedy_dpp(kernel, shots)], cosines)

    def _settings(self) -> dict[str, Any]:
        return {"top": self.top, "scale": self.scale}


def dpp_kernel(
    cosines: Float[Tensor, " candidates"], vectors: Float[Tensor, "candidates dim"], scale: float
) -> Float[Tensor, "candidates candidates"]:
    """OpenICL's kernel; the relevance is measured from its largest, which changes no choice."""
    relevance = (cosines + 1) / 2
    weights = ((relevance - relevance.max()) / (2 * scale)).exp() if len(cosines) else relevance
    similarity = (vectors @ vectors.T + 1) / 2
    return weights.unsqueeze(-1) * similarity * weights
