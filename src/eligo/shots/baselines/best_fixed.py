"""BestFixed: the same examples for every query, chosen greedily on training queries."""

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from eligo.errors import InputError
from eligo.shots.baselines.oracles import Utility
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import shuffled
from eligo.shots.selector import PoolSelector, ScoredPicks


class BestFixed(PoolSelector):
    """One list for all queries (of a domain).

    The next example has the best mean value after those before it. After `length` of them, all
    others follow by their own mean value, to replace examples that a query may not get.
    """

    kind: ClassVar[str] = "best_fixed"

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        length: int = 6,
        num_queries: int = 256,
        seed: int = 0,
    ) -> None:
        self.utility = utility
        self.length, self.num_queries, self.seed = length, num_queries, seed
        self.orders: dict[str | None, list[str]] = {}

    @classmethod
    def of(cls, orders: Mapping[str | None, Sequence[str]], pool: Pool) -> "BestFixed":
        """Return a selector with lists that were chosen elsewhere, by domain."""
        selector = cls()
        selector.orders = {domain: list(order) for domain, order in orders.items()}
        selector._pool = pool
        return selector

    def _learn(self, records: Sequence[Record]) -> None:
        if self.utility is None:
            raise InputError("BestFixed: needs a utility to choose by; give BestFixed(utility)")
        by_domain: dict[str | None, list[Query]] = {}
        for record in records:
            domain = None if self.pool.domains is None else record.query.domain
            by_domain.setdefault(domain, []).append(record.query)
        self.orders = {d: self._order(self.utility, d, q) for d, q in by_domain.items()}

    def _order(self, utility: Utility, domain: str | None, queries: list[Query]) -> list[str]:
        domains = self.pool.domains
        names = [n for row, n in enumerate(self.pool.ids) if not domains or domains[row] == domain]
        drawn = shuffled(torch.arange(len(queries)), self.seed, str(domain))
        queries = [queries[index] for index in drawn[: self.num_queries].tolist()]
        alone = self._means(utility, queries, (), names)
        prefix: tuple[str, ...] = ()
        for _ in range(min(self.length, len(names))):
            left = [name for name in names if name not in prefix]
            means = self._means(utility, queries, prefix, left) if prefix else alone
            prefix = (*prefix, left[int(means.argmax())])
        rest = [names[index] for index in alone.argsort(descending=True, stable=True).tolist()]
        return [*prefix, *(name for name in rest if name not in prefix)]

    def _means(
        self, utility: Utility, queries: Sequence[Query], prefix: tuple[str, ...], names: list[str]
    ) -> Tensor:
        """Return the mean value of candidates over the queries that may get them."""
        total, count = torch.zeros(len(names)), torch.zeros(len(names))
        index = {name: position for position, name in enumerate(names)}
        rows = self.pool.rows(names)
        for query in queries:
            mask = self.pool.allowed(query)
            allowed = list(compress(names, mask[rows].tolist()))
            if not allowed or not mask[self.pool.rows(prefix)].all():
                continue
            positions = [index[name] for name in allowed]
            total[positions] += utility.values(query, prefix, allowed).float()
            count[positions] += 1
        return torch.where(count > 0, total / count.clamp_min(1), -torch.inf)

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        domain = None if self.pool.domains is None else query.domain
        if domain not in self.orders:
            raise InputError(f"BestFixed: no training query has domain {domain!r}; fit with some")
        order = self.orders[domain]
        rank = torch.full((len(self.pool),), len(order))
        known = [name for name in order if name in self.pool]
        rank[self.pool.rows(known)] = torch.arange(len(known))
        scores = -rank[rows].float()
        return ScoredPicks(scores.argsort(descending=True, stable=True)[:shots], scores)

    def _settings(self) -> dict[str, Any]:
        return {"orders": [[domain, order] for domain, order in self.orders.items()]}

    @classmethod
    def _restore(cls, settings: dict[str, Any], folder: Path, pool: Pool) -> "BestFixed":  # noqa: ARG003
        return cls.of(dict(settings["orders"]), pool)
