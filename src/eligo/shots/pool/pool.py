"""Pool: the examples that may enter a prompt.

A pool is immutable: `add` and `remove` return a new one. On disk it is a folder:

    embeddings.safetensors   one tensor per view (`image`, `text`), a row for each example
    items.jsonl              one line for each row: id, group, payload, token cost, domain
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from torch import Tensor

from eligo.config.problems import did_you_mean
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.json_lines import JsonRow, TextOrNumber, read_json_lines
from eligo.io.reading import reading
from eligo.io.tensors import save_tensors
from eligo.selection import Selection
from eligo.shots.data.query import (
    Embeddings,
    EmbeddingViews,
    Query,
    as_views,
    check_id,
    joined,
)

VECTORS, ITEMS = "embeddings.safetensors", "items.jsonl"
_QUESTIONS = ("question", "input", "text")
_TEXT_FIELDS = ("text", "question", "input", "answer", "output")


class _ItemRow(JsonRow, extra="allow"):
    id: TextOrNumber


@dataclass(frozen=True, eq=False)
class Pool:
    """Examples by row: ids, embeddings and optional columns.

    >>> pool = Pool(["a", "b"], torch.eye(2))
    >>> pool.add(["c"], torch.ones(1, 2)).remove(["a"]).ids
    ('b', 'c')
    """

    ids: Sequence[str]
    embeddings: Embeddings
    """(items, dim), or one such tensor for each view: `{"image": ..., "text": ...}`."""
    groups: Sequence[str | None] | None = None
    """A query never gets examples of its own group, such as those of the same image."""
    payload: Sequence[Any] | None = None
    """Content of an example: its text, or a mapping with `question`, `answer`, ..."""
    token_costs: Sequence[int] | None = None
    """Tokens that each example takes in a prompt."""
    domains: Sequence[str | None] | None = None
    """A query gets only examples of its own domain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        for name in self.ids:
            check_id(name, "Pool")
        if len(self._rows) != len(self.ids):
            repeated = Counter(self.ids).most_common(1)[0][0]
            raise InputError(f"Pool: id {repeated!r} comes twice; ids are unique")
        for name, view in self.views.items():
            self._check_length(name, len(view))
        for name in ("groups", "payload", "token_costs", "domains"):
            column = getattr(self, name)
            if column is not None:
                self._check_length(name, len(column))
                object.__setattr__(self, name, tuple(column))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @cached_property
    def views(self) -> EmbeddingViews:
        """The embeddings by view."""
        return as_views(self.embeddings, "Pool", 2, self.ids)

    @cached_property
    def vectors(self) -> Float[Tensor, "items dim"]:
        """One unit vector for each example: the views joined."""
        return joined(self.views)

    @cached_property
    def texts(self) -> list[str]:
        """The text of each example: its payload, or the texts in it, question and answer."""
        if self.payload is None:
            raise InputError("Pool: has no payload, so no texts; give Pool(..., payload=texts)")
        return [_text_of(item) for item in self.payload]

    @cached_property
    def costs(self) -> Int[Tensor, " items"]:
        """Tokens that each example takes."""
        if self.token_costs is None:
            raise InputError("Pool: has no token_costs, which a token_budget needs; give them")
        return torch.tensor(self.token_costs, dtype=torch.int64)

    def rows(self, ids: Iterable[str]) -> Int[Tensor, " rows"]:
        """Return the rows of some ids."""
        wanted = list(ids)
        missing = [name for name in wanted if name not in self._rows]
        if missing:
            # Searching a million names for the nearest would take a minute.
            near = did_you_mean(missing[0], self.ids[:1000])
            raise InputError(
                f"Pool: has no {missing[0]!r}{near} ({len(missing)} of {len(wanted)} ids are not "
                f"among its {len(self)})"
            )
        return torch.tensor([self._rows[name] for name in wanted], dtype=torch.int64)

    def query(self, row: int) -> Query:
        """Return a row as a query, of a pool that holds queries."""
        return Query(
            self.ids[row],
            EmbeddingViews({name: view[row] for name, view in self.views.items()}),
            group=None if self.groups is None else self.groups[row],
            domain=None if self.domains is None else self.domains[row],
            text=None if self.payload is None else _question_of(self.payload[row]),
        )

    def queries(self) -> list[Query]:
        """Return all rows as queries."""
        return [self.query(row) for row in range(len(self))]

    def allowed(self, query: Query, exclude: Iterable[str] = ()) -> Bool[Tensor, " items"]:
        """Mask of what a query may get: its domain, but neither itself nor its group."""
        mask = torch.ones(len(self), dtype=torch.bool)
        forbidden = {query.id, *exclude}
        mask[[self._rows[name] for name in forbidden if name in self._rows]] = False
        if query.group is not None and self.groups is not None:
            mask[self._members["groups"].get(query.group, [])] = False
        if self.domains is not None:
            same = torch.zeros_like(mask)
            same[self._members["domains"].get(query.domain, [])] = True
            mask &= same
        return mask

    def names(self, rows: Int[Tensor, " rows"]) -> list[str]:
        """Return the ids of some rows; -1 is skipped."""
        return [str(self.ids[int(row)]) for row in rows.flatten() if row >= 0]

    def picked(self, selection: Selection) -> list[Any]:
        """Return the ids of a selection from this pool, in order of choice.

        Of a selection for many queries it is a list for each.
        """
        if selection.indices.ndim == 1:
            return self.names(selection.indices)
        return [self.names(row) for row in selection.indices]

    def add(self, ids: Sequence[str], embeddings: Embeddings, **columns: Sequence) -> "Pool":
        """Return a pool with more examples; columns that one side lacks are None there."""
        if not isinstance(embeddings, Mapping) and len(self.views) == 1:
            embeddings = {next(iter(self.views)): embeddings}
        more = Pool(ids, embeddings, **columns)
        if set(more.views) != set(self.views):
            raise InputError(
                f"Pool.add: got views {sorted(more.views)}, expected {sorted(self.views)}"
            )
        if any(view.shape[1] != more.views[name].shape[1] for name, view in self.views.items()):
            raise InputError(f"Pool.add: got width {_widths(more)}, expected {_widths(self)}")
        views = EmbeddingViews(
            {n: torch.cat([view, more.views[n]]) for n, view in self.views.items()}
        )
        both = {name: self._appended(more, name) for name in _COLUMNS}
        return Pool((*self.ids, *more.ids), views, **both)

    def remove(self, ids: Iterable[str]) -> "Pool":
        """Return a pool without these examples."""
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[self.rows(ids)] = False
        return self.take(keep.nonzero().flatten())

    def take(self, rows: Int[Tensor, " rows"]) -> "Pool":
        """Return a pool of some rows, in that order."""
        wanted = [int(row) for row in rows]
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return Pool(
            [self.ids[row] for row in wanted],
            EmbeddingViews({name: view[rows] for name, view in self.views.items()}),
            **{n: None if c is None else [c[row] for row in wanted] for n, c in columns.items()},
        )

    @cached_property
    def content_hash(self) -> str:
        """Hash of ids, embeddings and columns; a copy has the same."""
        digest = hashlib.sha256(_ids_hash(self.ids).encode())
        for name, view in sorted(self.views.items()):
            digest.update(f"{name} {view.dtype} {tuple(view.shape)}".encode())
            digest.update(view.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        for name in _COLUMNS:
            digest.update(_json([name, getattr(self, name)]).encode())
        return digest.hexdigest()[:32]

    def save(self, folder: str | Path) -> None:
        """Write the folder that `load` reads."""
        folder = Path(folder)
        columns = {_FIELD[n]: getattr(self, n) for n in _COLUMNS if getattr(self, n) is not None}
        rows = [
            {"id": name, **{field: column[row] for field, column in columns.items()}}
            for row, name in enumerate(self.ids)
        ]
        lines = "".join(_json(row) + "\n" for row in rows)
        save_tensors(folder / VECTORS, self.views, {"ids": _ids_hash(self.ids)})
        write_text(folder / ITEMS, lines)

    @classmethod
    def load(cls, folder: str | Path) -> "Pool":
        """Read a folder; the embeddings are memory-mapped."""
        folder = Path(folder)
        rows = [row for _, row in read_json_lines(folder / ITEMS, _ItemRow, unique="id")]
        ids = [row.id for row in rows]
        path = folder / VECTORS
        with reading(path, "vectors as Pool.save writes them"), safe_open(path, "pt") as file:
            ids_hash = (file.metadata() or {}).get("ids")
            names = list(file.keys())
            views = EmbeddingViews({name: file.get_tensor(name) for name in names})
        if ids_hash != _ids_hash(ids):
            raise InputError(
                f"{folder}: {ITEMS} does not belong to {VECTORS} (other ids, or another order); "
                "embed again"
            )
        columns: dict[str, Any] = {
            name: [getattr(row, field, None) for row in rows]
            for name, field in _FIELD.items()
            if any(hasattr(row, field) for row in rows)
        }
        return cls(ids, views, **columns)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @cached_property
    def _members(self) -> dict[str, dict[str | None, list[int]]]:
        """Rows by group and by domain."""
        members: dict[str, dict[str | None, list[int]]] = {"groups": {}, "domains": {}}
        for column, rows in members.items():
            for row, name in enumerate(getattr(self, column) or ()):
                rows.setdefault(name, []).append(row)
        return members

    def _appended(self, more: "Pool", name: str) -> list | None:
        own, added = getattr(self, name), getattr(more, name)
        if own is None and added is None:
            return None
        if name == "token_costs" and (own is None or added is None):
            raise InputError("Pool.add: token_costs are given on one side only; give both or none")
        return [*(own or [None] * len(self)), *(added or [None] * len(more))]

    def _check_length(self, name: str, length: int) -> None:
        if length != len(self.ids):
            raise InputError(f"Pool: got {length} {name} for {len(self.ids)} ids")


_FIELD = {
    "groups": "group", "payload": "payload", "token_costs": "token_cost", "domains": "domain"
}  # fmt: skip
_COLUMNS = tuple(_FIELD)
assert set(_COLUMNS) | {"ids", "embeddings"} == {field.name for field in fields(Pool)}


def _question_of(payload: Any) -> str | None:
    if isinstance(payload, Mapping):
        return next((payload[name] for name in _QUESTIONS if name in payload), None)
    return payload if isinstance(payload, str) else None


def _text_of(payload: Any) -> str:
    if isinstance(payload, str):
        return payload
    if isinstance(payload, Mapping):
        return " ".join(str(payload[name]) for name in _TEXT_FIELDS if name in payload)
    raise InputError(
        f"payload: got {payload!r:.60}, expected text, or a mapping with {', '.join(_TEXT_FIELDS)}"
    )


def _widths(pool: Pool) -> dict[str, int]:
    return {name: view.shape[1] for name, view in pool.views.items()}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise InputError(
            f"Pool: cannot be written as JSON ({error}); keep in payload what JSON has: the "
            "path of an image, not the image"
        ) from error


def _ids_hash(ids: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{len(name)}:{name}" for name in ids).encode()).hexdigest()[:32]
