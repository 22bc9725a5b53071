"""Candidates of a query: by chance, by likeness, or both. Section 2, Samplers.

Never the query itself, nor its group, nor another domain (`Pool.allowed`). Positions are shuffled,
or a selector could learn that the first is the nearest.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.draws import shuffled
from eligo.shots.data.query import Query
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler_config import SamplerConfig


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
        """Rows of the pool, in an order that means nothing."""
        allowed = self.pool.allowed(query)
        if self.config.max_similarity is not None:
            allowed &= self.pool.vectors @ query.vector <= self.config.max_similarity
        size, seed = self.config.num_candidates, self.config.seed
        by_chance = shuffled(allowed.nonzero().flatten(), seed, query.id)
        shares = {
            "random": {},
            "text": {"text": size},
            "image": {"image": size},
            "mix": {"text": size // 4, "image": size - size // 2 - size // 4},
        }[self.config.kind]
        near = [self._nearest(query, view, count, allowed) for view, count in shares.items()]
        chance = by_chance[: size - sum(shares.values())]
        # Chance comes first: a quarter of the nearest does not shrink because it drew one of them.
        chosen = dict.fromkeys(torch.cat([chance, *near, by_chance]).tolist())
        return shuffled(torch.tensor(list(chosen)[:size], dtype=torch.int64), seed + 1, query.id)

    def names(self, query: Query) -> list[str]:
        """The same by id."""
        return self.pool.names(self.rows(query))

    def with_picks(self, query: Query, picks: Sequence[str]) -> list[str]:
        """Candidates that hold these examples, drawn or not, for records that name none."""
        drawn = self.names(query)
        size = max(self.config.num_candidates, len(picks))
        names = list(dict.fromkeys([*picks, *drawn]))[:size]
        order = shuffled(torch.arange(len(names)), self.config.seed + 2, query.id)
        return [names[place] for place in order.tolist()]

    @cached_property
    def _units(self) -> dict[str, Float[Tensor, "items dim"]]:
        return {name: F.normalize(view.float(), dim=-1) for name, view in self.pool.views.items()}

    def _nearest(self, query: Query, view: str, count: int, allowed: Tensor) -> Tensor:
        if view not in query.views:
            raise InputError(f"query {query.id!r}: has no view {view}, which the sampler looks at")
        cosines = self._units[view] @ F.normalize(query.views[view].float(), dim=-1)
        found = ops.top_k(cosines, min(count, len(cosines)), allowed)
        return found[found >= 0]
