"""What a list of examples is worth to a query: what oracles look at.

A teacher's scorer is one (values are log-probabilities of the answer); so is a table, in tests and
where everything was scored before.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.shots.data.query import Query


@runtime_checkable
class Utility(Protocol):
    """The larger, the better."""

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """The value of `(*prefix, c)` for each candidate c, in order of choice."""
        ...


class UtilityTable:
    """Values that are known: `table[query id][ids in order of choice]`."""

    def __init__(self, table: Mapping[str, Mapping[tuple[str, ...], float]]) -> None:
        self.table = table

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """The value of `(*prefix, c)` for each candidate c."""
        try:
            known = self.table[query.id]
            return torch.tensor([known[(*prefix, name)] for name in candidates])
        except KeyError as error:
            raise InputError(
                f"UtilityTable: has no value {error} of query {query.id!r} after {prefix}; score "
                "it, or give fewer candidates"
            ) from None
