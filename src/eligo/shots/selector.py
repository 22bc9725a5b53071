"""PoolSelector, the base of all selectors: `fit`, `select`, `save`, `load`.

    query ──> allowed rows (domain, group, exclude, candidates) ──> choose ──> within budget

A selection's indices are rows of the pool; `pool.picked(selection)` returns their ids.
"""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.locks import one_writer
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import find_model
from eligo.selection import Selection
from eligo.shots.data.query import Embeddings, Query
from eligo.shots.data.records import Record
from eligo.shots.pool.pool import Pool

ABOUT, POOL = "selector.json", "pool"
INNER = "selector"
"""Subfolder of the selector in a run of `eligo shots train`."""
_FORMAT = 1
_KINDS: dict[str, type["PoolSelector"]] = {}
SelectorT = TypeVar("SelectorT", bound="PoolSelector")


class ScoredPicks(NamedTuple):
    """The choice of a selector among some rows of the pool."""

    picks: Int[Tensor, " picks"]
    """Positions among the rows, in order of choice."""
    scores: Float[Tensor, " rows"]
    """Scores of the rows at the first step."""


class PoolSelector(ABC):
    """A selector with its pool; subclasses implement `_choose`."""

    kind: ClassVar[str]
    """Name in files and tables."""
    sees_answer: ClassVar[bool] = False
    """Whether it is an oracle, which cannot be saved."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    _pool: Pool | None = None
    _lock: ClassVar = RLock()  # `add` and `remove` change what `select` reads

    @property
    def pool(self) -> Pool:
        """The examples to choose from."""
        if self._pool is None:
            raise InputError(f"{type(self).__name__}: has no pool yet; call fit(records, pool)")
        return self._pool

    def fit(self: SelectorT, records: Sequence[Record], pool: Pool) -> SelectorT:
        """Learn from records, if the selector learns, and choose from this pool from now on."""
        with self._lock:
            before, self._pool = self._pool, pool
            try:
                self._learn(records)
            except BaseException:  # what it learned before belongs to the old pool
                self._pool = before
                raise
        return self

    def with_pool(self: SelectorT, pool: Pool) -> SelectorT:
        """Return a copy that chooses from another pool; nothing is learned again."""
        other = copy.copy(self)
        other._pool = pool
        return other

    def select(
        self,
        query: "Query | Sequence[Query] | Pool",
        shots: int,
        *,
        candidates: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        token_budget: int | None = None,
    ) -> Selection:
        """Return up to `shots` examples in order of choice; -1 where there are no more.

        The query itself, its group, other domains and `exclude` are never chosen; with
        `candidates`, only those are. With `token_budget`, the next best that still fits is taken.

        Many queries (a list, or a pool of them) give one selection with a row for each.
        """
        shots = check_count("shots", shots, least=0)
        if token_budget is not None:
            check_count("token_budget", token_budget, least=0)
        if isinstance(query, Query):
            return self._select(query, shots, candidates, exclude, token_budget)
        queries = query.queries() if isinstance(query, Pool) else list(query)
        only = None if candidates is None else list(candidates)
        without = list(exclude)
        parts = [self._select(each, shots, only, without, token_budget) for each in queries]
        if not parts:
            empty = torch.zeros(0, len(self.pool))
            indices = torch.zeros(0, shots, dtype=torch.int64)
            return Selection(indices, empty, empty.bool())
        columns = zip(*((part.indices, part.scores, part.mask) for part in parts), strict=True)
        return Selection(*(torch.stack(column) for column in columns))

    def picks(self, queries: "Sequence[Query] | Pool", shots: int) -> list[list[str]]:
        """Return the ids chosen for each of many queries, in order of choice."""
        return self.pool.picked(self.select(queries, shots))

    def _select(
        self,
        query: Query,
        shots: int,
        candidates: Iterable[str] | None,
        exclude: Iterable[str],
        token_budget: int | None,
    ) -> Selection:
        with self._lock:
            pool = self.pool
            mask = self._allowed(query, candidates, exclude)
            if token_budget is not None:
                mask &= pool.costs <= token_budget
            rows = self._shortlist(query, mask, shots)
            while True:
                choice = self._choose(query, rows, min(shots, len(rows)))
                chosen, left = self._within(token_budget, rows, choice)
                if len(left) == len(rows):
                    break
                rows = left
        picks = torch.nn.functional.pad(chosen, (0, shots - len(chosen)), value=-1)
        scores = torch.full((len(pool),), -torch.inf)
        scores[rows] = choice.scores.float()
        return Selection(picks, scores, mask)

    def add(self, ids: Sequence[str], embeddings: Embeddings, **columns: Sequence) -> None:
        """Add examples to the pool (see `Pool.add`); nothing is learned again."""
        with self._lock:
            before = len(self.pool)
            self._pool = self.pool.add(ids, embeddings, **columns)
            self._added(range(before, len(self._pool)))

    def remove(self, ids: Iterable[str]) -> None:
        """Remove examples from the pool."""
        removed = list(ids)
        with self._lock:
            rows = self.pool.rows(removed)
            self._pool = self.pool.remove(removed)
            self._removed(rows)

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write the selector and its pool; `dtype` torch.float16 halves the size of weights."""
        if self.sees_answer:
            raise InputError(
                f"{type(self).__name__}: an oracle uses the answers and cannot be saved"
            )
        with self._lock, one_writer(folder) as folder:
            about = {"format": _FORMAT, "kind": self.kind, "pool": self.pool.content_hash}
            self.pool.save(folder / POOL)
            self._save(folder, dtype)
            write_text(folder / ABOUT, json.dumps({**about, **self._settings()}, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls: type[SelectorT], name: str | Path) -> SelectorT:
        """Load a selector of this kind (any kind: `PoolSelector`) with its pool.

        `name` is its folder, that of a run of `eligo shots train`, or a name on the hub.
        """
        loaded = load_selector(name)
        if not isinstance(loaded, cls):
            raise InputError(f"{name}: holds a {type(loaded).__name__}, not a {cls.__name__}")
        return loaded

    save = save_pretrained
    load = from_pretrained

    @abstractmethod
    def _choose(self, query: Query, rows: Int[Tensor, " rows"], shots: int) -> ScoredPicks:
        """Choose `shots` of these rows; `shots` is at most their number."""

    def _shortlist(self, query: Query, mask: Tensor, shots: int) -> Tensor:  # noqa: ARG002
        """Return the rows to choose from, ascending."""
        return mask.nonzero().flatten()

    def _learn(self, records: Sequence[Record]) -> None:  # noqa: ARG002
        return

    def _added(self, rows: range) -> None:  # noqa: ARG002
        return

    def _removed(self, rows: Int[Tensor, " rows"]) -> None:  # noqa: ARG002
        return

    def _settings(self) -> dict[str, Any]:
        """Return what `_restore` needs, as JSON."""
        return {}

    def _save(self, folder: Path, dtype: torch.dtype | None) -> None:  # noqa: ARG002
        return

    @classmethod
    def _restore(cls, settings: dict[str, Any], folder: Path, pool: Pool) -> "PoolSelector":  # noqa: ARG003
        return cls(**settings)

    def _allowed(
        self, query: Query, candidates: Iterable[str] | None, exclude: Iterable[str] = ()
    ) -> Bool[Tensor, " items"]:
        """Mask of the rows that the query may get; with `candidates`, only of those."""
        expected, got = self.pool.vectors.shape[1], len(query.vector)
        if got != expected:
            raise InputError(f"query {query.id!r}: got width {got}, expected the pool's {expected}")
        mask = self.pool.allowed(query, exclude)
        if candidates is None:
            return mask
        wanted = torch.zeros_like(mask)
        wanted[self.pool.rows(candidates)] = True
        return mask & wanted

    def _within(
        self, budget: int | None, rows: Tensor, choice: ScoredPicks
    ) -> tuple[Tensor, Tensor]:
        """Return the chosen rows that fit the budget, and all rows that can still fit.

        Every further round keeps at least one more pick, as the other rows never come back.
        """
        chosen = rows[choice.picks]
        if budget is None:
            return chosen, rows
        costs = self.pool.costs
        spent = costs[chosen].cumsum(0)
        fits = int((spent <= budget).sum())
        if fits == len(chosen):
            return chosen, rows
        left = budget - int(spent[fits - 1] if fits else 0)
        return chosen[:fits], rows[torch.isin(rows, chosen[:fits]) | (costs[rows] <= left)]


def load_selector(name: str | Path) -> PoolSelector:
    """Load a saved selector of any kind: by its folder, that of its run, or a name on the hub."""
    from eligo.shots import baselines  # noqa: F401 (registers all kinds)
    from eligo.shots.inference import learned_selector as _  # noqa: F401

    folder = find_model(name, ABOUT)
    if (folder / INNER / ABOUT).is_file():
        folder = folder / INNER
    path = folder / ABOUT
    if not path.is_file():
        raise InputError(f"{folder}: is not a saved selector; expected {ABOUT} in it")
    about = read_object(path, "PoolSelector.save_pretrained")
    version, kind, saved_hash = (about.pop(name, None) for name in ("format", "kind", "pool"))
    if version != _FORMAT or not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"{path}: got format {version!r}, kind {kind!r}; expected {_FORMAT} and one of "
            f"{', '.join(sorted(_KINDS))}"
        )
    pool = Pool.load(folder / POOL)
    if pool.content_hash != saved_hash:
        raise InputError(
            f"{folder}: its pool has hash {pool.content_hash}, but the selector was saved with "
            f"{saved_hash}; save it again, or use selector.add and selector.remove to change a pool"
        )
    with reading(path, f"the settings of a selector of kind {kind}"):
        selector = _KINDS[kind]._restore(about, folder, pool)
    selector._pool = pool
    return selector
