"""Record: what a teacher found for one query; and records as tensors for a model. Section 2.

Positions are looked up by id, never computed. Readers are strict where models are lenient: a label
outside the candidates, one that comes twice, or a query among its own candidates is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.shots.data.draws import shuffled
from eligo.shots.data.query import Query
from eligo.shots.pool.pool import Pool


@dataclass(frozen=True, eq=False)
class Record:
    """The examples that a query should get, in order of choice, from some candidates."""

    query: Query
    picks: Sequence[str]
    """Ids, the first choice first."""
    candidates: Sequence[str] | None = None
    """Ids that the teacher chose from; None: not known, a random draw stands in for them."""
    scores: Sequence[float] | None = None
    """A score for each pick; NaN: none."""
    step_scores: Float[Tensor, "steps candidates"] | None = None
    """A score for each candidate at each step; NaN: none."""
    weight: float = 1.0
    """How much the record counts."""


class Example(NamedTuple):
    """A record by row and position."""

    query: Float[Tensor, " dim"]
    rows: Int[Tensor, " candidates"]
    """Of the candidates in the pool."""
    labels: Int[Tensor, " steps"]
    """Positions of the picks among the candidates."""
    scores: Float[Tensor, " steps"] | None
    step_scores: Float[Tensor, "steps candidates"] | None
    weight: float


class Batch(NamedTuple):
    """Examples side by side, padded: what a pointer selector is called with."""

    query: Float[Tensor, "batch dim"]
    candidates: Float[Tensor, "batch candidates dim"]
    mask: Bool[Tensor, "batch candidates"]
    labels: Int[Tensor, "batch steps"]
    beam_scores: Float[Tensor, "batch steps"] | None
    step_scores: Float[Tensor, "batch steps candidates"] | None
    weights: Float[Tensor, " batch"]

    def to(self, device: torch.device) -> "Batch":
        """On another device."""
        moved = {n: part.to(device) for n, part in self._asdict().items() if part is not None}
        return self._replace(**moved)


def as_example(record: Record, pool: Pool, num_candidates: int, seed: int = 0) -> Example:
    """The record in the pool's rows; candidates are drawn where it names none."""
    query, picks = record.query, list(record.picks)
    where = f"record of query {query.id!r}"
    if len(set(picks)) < len(picks):
        raise InputError(f"{where}: picks {picks} name one example twice")
    allowed = pool.allowed(query)
    if record.candidates is None:
        chosen = pool.rows(picks)
        others = allowed.clone()
        others[chosen] = False
        rest = shuffled(others.nonzero().flatten(), seed, query.id)
        rows = torch.cat([chosen, rest[: max(0, num_candidates - len(chosen))]])
        rows = shuffled(rows, seed + 1, query.id)  # else position would tell the label
    else:
        rows = pool.rows(record.candidates)
    if not allowed[rows].all():
        leak = pool.ids[int(rows[~allowed[rows]][0])]
        raise InputError(
            f"{where}: candidate {leak!r} is the query itself, or of its group, or of another "
            "domain; leave it out, its answer would leak"
        )
    place = {pool.ids[row]: position for position, row in enumerate(rows.tolist())}
    if len(place) < len(rows):
        raise InputError(f"{where}: candidates name one example twice")
    strangers = [name for name in picks if name not in place]
    if strangers:
        raise InputError(f"{where}: pick {strangers[0]!r} is not among its {len(rows)} candidates")
    labels = torch.tensor([place[name] for name in picks], dtype=torch.int64)
    return Example(
        query.vector, rows, labels, _scores(record, where), _step_scores(record, where, rows),
        record.weight,
    )  # fmt: skip


class Table(NamedTuple):
    """Examples of any lengths side by side, padded once; candidates by their rows."""

    query: Float[Tensor, "examples dim"]
    rows: Int[Tensor, "examples candidates"]
    """Of the pool; -1: none."""
    labels: Int[Tensor, "examples steps"]
    scores: Float[Tensor, "examples steps"] | None
    step_scores: Float[Tensor, "examples steps candidates"] | None
    weights: Float[Tensor, " examples"]

    def batch(self, places: Int[Tensor, " places"], pool: Pool) -> Batch:
        """Some of the examples, with the vectors of their candidates."""
        rows = self.rows[places]
        mask = rows >= 0
        return Batch(
            self.query[places],
            pool.vectors[rows.clamp_min(0)].masked_fill(~mask.unsqueeze(-1), 0.0),
            mask,
            self.labels[places],
            None if self.scores is None else self.scores[places],
            None if self.step_scores is None else self.step_scores[places],
            self.weights[places],
        )


def tabulate(examples: Sequence[Example]) -> Table:
    """All examples as tensors."""
    width = max(len(example.rows) for example in examples)
    steps = max(len(example.labels) for example in examples)
    return Table(
        torch.stack([example.query for example in examples]),
        _padded([example.rows for example in examples], (width,), -1),
        _padded([example.labels for example in examples], (steps,), -1),
        _padded_scores([example.scores for example in examples], (steps,)),
        _padded_scores([example.step_scores for example in examples], (steps, width)),
        torch.tensor([example.weight for example in examples]),
    )


def collate(examples: Sequence[Example], pool: Pool) -> Batch:
    """Examples of any lengths in one batch."""
    return tabulate(examples).batch(torch.arange(len(examples)), pool)


def _scores(record: Record, where: str) -> Tensor | None:
    if record.scores is None:
        return None
    if len(record.scores) != len(record.picks):
        raise InputError(f"{where}: got {len(record.scores)} scores for {len(record.picks)} picks")
    return torch.tensor(list(record.scores), dtype=torch.float32)


def _step_scores(record: Record, where: str, rows: Tensor) -> Tensor | None:
    if record.step_scores is None:
        return None
    if record.candidates is None:
        raise InputError(f"{where}: has step_scores but no candidates for them; name those")
    expected = (len(record.picks), len(rows))
    if tuple(record.step_scores.shape) != expected:
        got = tuple(record.step_scores.shape)
        raise InputError(f"{where}: got step_scores {got}, expected (picks, candidates) {expected}")
    return record.step_scores.float()


def _padded(parts: Sequence[Tensor], shape: tuple[int, ...], value: int | float) -> Tensor:
    whole = parts[0].new_full((len(parts), *shape), value)
    for place, part in enumerate(parts):
        whole[(place, *(slice(length) for length in part.shape))] = part
    return whole


def _padded_scores(parts: Sequence[Tensor | None], shape: tuple[int, ...]) -> Tensor | None:
    if all(part is None for part in parts):
        return None
    empty = torch.zeros((0,) * len(shape))
    return _padded([empty if part is None else part for part in parts], shape, torch.nan)
