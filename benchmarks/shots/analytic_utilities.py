"""Utilities that are formulas: what a selector can learn, without a model to ask. Section 6.

    relevance    sum_i cos(q, d_i)
    redundancy   relevance - w sum_{i<j} cos(d_i, d_j)
    order        sum_i (1 - 0.3 i) cos(q, d_i) + w sum_i <head of d_{i-1}, tail of d_i>

A ranker of single examples is perfect on the first only. In the second, a pick changes what the
others are worth; in the third, what comes next depends on the last one (head and tail are the two
halves of a vector).
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.pool.pool import Pool

Kind = Literal["relevance", "redundancy", "order"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FADE = 0.3  # of the relevance, from place to place
_WEIGHT: dict[Kind, float] = {"relevance": 0.0, "redundancy": 0.7, "order": 1.6}


class AnalyticUtility:
    """One of the formulas, on the vectors of a pool."""

    def __init__(self, pool: Pool, kind: Kind) -> None:
        self.pool = pool
        self.kind: Kind = kind

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """The value of `(*prefix, c)` for each candidate c."""
        rows = self.pool.rows([*prefix, *candidates])
        vectors = self.pool.vectors[rows]
        told, new = vectors[: len(prefix)], vectors[len(prefix) :]
        before = sum((self._added(query, told[:n], told[n : n + 1]) for n in range(len(told))), 0.0)
        return before + self._added(query, told, new)

    def _added(self, query: Query, told: Tensor, new: Tensor) -> Tensor:
        """What each new one adds behind those that are there."""
        relevance, weight = new @ query.vector, _WEIGHT[self.kind]
        if self.kind == "relevance" or not len(told):
            return relevance
        if self.kind == "redundancy":
            return relevance - weight * (new @ told.T).sum(1)
        half = new.shape[1] // 2
        follows = new[:, half:] @ told[-1, : new.shape[1] - half]
        return relevance * (1 - _FADE * len(told)) + weight * follows


def list_values(
    candidates: Float[Tensor, "candidates dim"],
    query: Float[Tensor, " dim"],
    lists: Int64[Tensor, "lists shots"],
    kind: Kind,
) -> Float[Tensor, " lists"]:
    """The same values of many lists at once, as products of their vectors."""
    relevance, weight, shots = (candidates @ query)[lists], _WEIGHT[kind], lists.shape[1]
    if kind == "order":
        half = candidates.shape[1] // 2
        follows = candidates[:, : candidates.shape[1] - half] @ candidates[:, half:].T
        fade = 1 - _FADE * torch.arange(shots)
        return (relevance * fade).sum(1) + weight * follows[lists[:, :-1], lists[:, 1:]].sum(1)
    alike = (candidates @ candidates.T)[lists[:, :, None], lists[:, None]]
    return relevance.sum(1) - weight * alike.triu(1).sum((1, 2))
