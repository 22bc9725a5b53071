"""Record: the examples that a teacher chose for one query; and records as tensors for a model.

Positions are looked up by id. A label outside the candidates, a repeated label, or a query among
its own candidates is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import shuffled


@dataclass(frozen=True, eq=False)
class Record:
    """The examples that a query should get, in order of choice, from some candidates."""

    query: Query
    picks: Sequence[str]
    """Ids, the first choice first."""
    candidates: Sequence[str] | None = None
    """Ids that the teacher chose from; None: unknown, replaced by a random draw."""
    scores: Sequence[float] | None = None
    """A score for each pick; NaN: none."""
    step_scores: Float[Tensor, "steps candidates"] | None = None
    """A score for each candidate at each step; NaN: none."""
    weight: float = 1.0
    """Weight of the record in the loss."""


class EncodedRecord(NamedTuple):
    """A record as rows of the pool and positions among the candidates."""

    query: Float[Tensor, " dim"]
    rows: Int[Tensor, " candidates"]
    """Rows of the candidates in the pool."""
    labels: Int[Tensor, " steps"]
    """Positions of the picks among the candidates."""
    scores: Float[Tensor, " steps"] | None
    step_scores: Float[Tensor, "steps candidates"] | None
    weight: float


class RecordBatch(NamedTuple):
    """Padded records: the input of a pointer selector."""

    query: Float[Tensor, "batch dim"]
    candidates: Float[Tensor, "batch candidates dim"]
    mask: Bool[Tensor, "batch candidates"]
    labels: Int[Tensor, "batch steps"]
    beam_scores: Float[Tensor, "batch steps"] | None
    step_scores: Float[Tensor, "batch steps candidates"] | None
    weights: Float[Tensor, " batch"]

    def to(self, device: torch.device) -> "RecordBatch":
        """Move to another device."""
        moved = {n: part.to(device) for n, part in self._asdict().items() if part is not None}
        return self._replace(**moved)


class RecordTable(NamedTuple):
    """All records, padded once, with candidates as rows of the pool (-1: none)."""

    query: Float[Tensor, "records dim"]
    rows: Int[Tensor, "records candidates"]
    labels: Int[Tensor, "records steps"]
    scores: Float[Tensor, "records steps"] | None
    step_scores: Float[Tensor, "records steps candidates"] | None
    weights: Float[Tensor, " records"]

    def batch(self, positions: Int[Tensor, " batch"], pool: Pool) -> RecordBatch:
        """Return some records with the vectors of their candidates."""
        rows = self.rows[positions]
        mask = rows >= 0
        return RecordBatch(
            self.query[positions],
            pool.vectors[rows.clamp_min(0)].masked_fill(~mask.unsqueeze(-1), 0.0),
            mask,
            self.labels[positions],
            None if self.scores is None else self.scores[positions],
            None if self.step_scores is None else self.step_scores[positions],
            self.weights[positions],
        )


def encode_record(record: Record, pool: Pool, num_candidates: int, seed: int = 0) -> EncodedRecord:
    """Look a record up in the pool; candidates are drawn where it names none."""
    query, picks = record.query, list(record.picks)
    where = f"record of query {query.id!r}"
    if len(set(picks)) < len(picks):
        raise InputError(f"{where}: picks {picks} name one example twice")
    expected, got = pool.vectors.shape[1], len(query.vector)
    if got != expected:
        raise InputError(f"{where}: its vector has width {got}, expected the pool's {expected}")
    allowed = pool.allowed(query)
    if record.candidates is None:
        chosen = pool.rows(picks)
        others = allowed.clone()
        others[chosen] = False
        rest = shuffled(others.nonzero().flatten(), seed, query.id)
        rows = torch.cat([chosen, rest[: max(0, num_candidates - len(chosen))]])
        rows = shuffled(rows, seed + 1, query.id)  # else the position would reveal the label
    else:
        rows = pool.rows(record.candidates)
    if not allowed[rows].all():
        leak = pool.ids[int(rows[~allowed[rows]][0])]
        raise InputError(
            f"{where}: candidate {leak!r} is the query itself, or of its group, or of another "
            "domain; leave it out, its answer would leak"
        )
    positions = {pool.ids[row]: position for position, row in enumerate(rows.tolist())}
    if len(positions) < len(rows):
        raise InputError(f"{where}: candidates name one example twice")
    unknown = [name for name in picks if name not in positions]
    if unknown:
        raise InputError(f"{where}: pick {unknown[0]!r} is not among its {len(rows)} candidates")
    labels = torch.tensor([positions[name] for name in picks], dtype=torch.int64)
    scores = _scores(record, where)
    step_scores = _step_scores(record, where, len(rows))
    return EncodedRecord(query.vector, rows, labels, scores, step_scores, record.weight)


def tabulate(records: Sequence[EncodedRecord]) -> RecordTable:
    """Pad records to one length."""
    width = max(len(record.rows) for record in records)
    steps = max(len(record.labels) for record in records)
    return RecordTable(
        torch.stack([record.query for record in records]),
        _padded([record.rows for record in records], (width,), -1),
        _padded([record.labels for record in records], (steps,), -1),
        _padded_scores([record.scores for record in records], (steps,)),
        _padded_scores([record.step_scores for record in records], (steps, width)),
        torch.tensor([record.weight for record in records]),
    )


def collate(records: Sequence[EncodedRecord], pool: Pool) -> RecordBatch:
    """Return records of any length as one batch."""
    return tabulate(records).batch(torch.arange(len(records)), pool)


def _scores(record: Record, where: str) -> Tensor | None:
    if record.scores is None:
        return None
    if len(record.scores) != len(record.picks):
        raise InputError(f"{where}: got {len(record.scores)} scores for {len(record.picks)} picks")
    return torch.tensor(list(record.scores), dtype=torch.float32)


def _step_scores(record: Record, where: str, num_candidates: int) -> Tensor | None:
    if record.step_scores is None:
        return None
    if record.candidates is None:
        raise InputError(f"{where}: has step_scores but no candidates for them; name those")
    got, expected = tuple(record.step_scores.shape), (len(record.picks), num_candidates)
    if got != expected:
        raise InputError(f"{where}: got step_scores {got}, expected (picks, candidates) {expected}")
    return record.step_scores.float()


def _padded(parts: Sequence[Tensor], shape: tuple[int, ...], value: int | float) -> Tensor:
    whole = parts[0].new_full((len(parts), *shape), value)
    for row, part in enumerate(parts):
        whole[(row, *(slice(length) for length in part.shape))] = part
    return whole


def _padded_scores(parts: Sequence[Tensor | None], shape: tuple[int, ...]) -> Tensor | None:
    if all(part is None for part in parts):
        return None
    empty = torch.zeros((0,) * len(shape))
    return _padded([empty if part is None else part for part in parts], shape, torch.nan)
