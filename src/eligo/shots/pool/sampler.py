"""Candidates of a query: drawn at random, by similarity, or both.

Never the query itself, nor its group, nor another domain (`Pool.allowed`). Positions are shuffled,
so that a selector cannot learn that the first is the nearest. Draws depend only on a seed and the
query's id, not on the batch, the order or the machine.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError
from eligo.shots.config import SamplerConfig
from eligo.shots.data.query import Query
from eligo.shots.pool.pool import Pool
from eligo.train.rng import mix

_BALANCE = 0.5  # of MMR: relevance and redundancy count the same


def generator(seed: int, name: str) -> torch.Generator:
    """Return the random generator of a query."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(mix(seed, number))


def shuffled(rows: Int[Tensor, " rows"], seed: int, name: str) -> Int[Tensor, " rows"]:
    """Return the rows in a random order that depends on the seed and the query's id.

    >>> sorted(shuffled(torch.tensor([4, 7, 9]), 0, "query").tolist())
    [4, 7, 9]
    """
    return rows[torch.randperm(len(rows), generator=generator(seed, name))]


class Sampler:
    """Draws candidates from a pool."""

    def __init__(self, pool: Pool, config: SamplerConfig | None = None) -> None:
        self.pool, self.config = pool, config or SamplerConfig()
        wanted = {"text": ["text"], "image": ["image"], "mix": ["text", "image"]}
        missing = set(wanted.get(self.config.kind, [])) - set(pool.views)
        if missing:
            raise InputError(
                f"sampler {self.config.kind}: the pool has no view {', '.join(sorted(missing))} "
                f"(only {', '.join(pool.views)}); embed it, or use the sampler random"
            )

    def rows(self, query: Query) -> Int[Tensor, " candidates"]:
        """Return rows of the pool in random order."""
        allowed = self.pool.allowed(query)
        if self.config.max_similarity is not None:
            allowed &= self.pool.vectors @ query.vector <= self.config.max_similarity
        size, seed = self.config.num_candidates, self.config.seed
        random_rows = shuffled(allowed.nonzero().flatten(), seed, query.id)
        if self.config.kind in ("nearest", "nearest_random"):
            near = size if self.config.kind == "nearest" else -(-size // 2)
            chosen = self._nearest_and_diverse(query, allowed, near)
            chosen = dict.fromkeys(torch.cat([chosen, random_rows]).tolist())
            rows = torch.tensor(list(chosen)[:size], dtype=torch.int64)
            return shuffled(rows, seed + 1, query.id)
        shares = {
            "random": {},
            "text": {"text": size},
            "image": {"image": size},
            "mix": {"text": size // 4, "image": size - size // 2 - size // 4},
        }[self.config.kind]
        by_view = [self._nearest(query, view, count, allowed) for view, count in shares.items()]
        drawn = random_rows[: size - sum(shares.values())]
        # Random draws come first, so that the shares of the nearest do not overlap with them.
        chosen = dict.fromkeys(torch.cat([drawn, *by_view, random_rows]).tolist())
        return shuffled(torch.tensor(list(chosen)[:size], dtype=torch.int64), seed + 1, query.id)

    def names(self, query: Query) -> list[str]:
        """Return the ids of `rows`."""
        return self.pool.names(self.rows(query))

    def with_picks(self, query: Query, picks: Sequence[str]) -> list[str]:
        """Return candidates that include these examples, for records that name none."""
        size = max(self.config.num_candidates, len(picks))
        names = list(dict.fromkeys([*picks, *self.names(query)]))[:size]
        order = shuffled(torch.arange(len(names)), self.config.seed + 2, query.id)
        return [names[index] for index in order.tolist()]

    def _nearest_and_diverse(self, query: Query, allowed: Tensor, size: int) -> Tensor:
        """Return what nearest neighbours and MMR would pick from the whole pool."""
        left = allowed.nonzero().flatten()
        vectors = self.pool.vectors[left]
        cosines = vectors @ query.vector
        number = min(self.config.num_candidates // 4, len(left))
        diverse = ops.greedy_mmr(cosines, vectors, number, _BALANCE)
        nearest = ops.top_k(cosines, min(size, len(cosines)))
        chosen = dict.fromkeys([*diverse.tolist(), *nearest.tolist()])
        return left[list(chosen)[:size]]

    @cached_property
    def _units(self) -> dict[str, Float[Tensor, "items dim"]]:
        return {name: F.normalize(view.float(), dim=-1) for name, view in self.pool.views.items()}

    def _nearest(self, query: Query, view: str, count: int, allowed: Tensor) -> Tensor:
        if view not in query.views:
            raise InputError(f"query {query.id!r}: has no view {view}, which the sampler compares")
        cosines = self._units[view] @ F.normalize(query.views[view].float(), dim=-1)
        nearest = ops.top_k(cosines, min(count, len(cosines)), allowed)
        return nearest[nearest >= 0]
