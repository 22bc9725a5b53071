"""Examples chosen for one question, for the explorer: the picks beside what was not picked."""

from collections.abc import Mapping, Sequence

import torch
from PIL import Image

from eligo.explorer.record import Answer, ExplorerRecord, Item, Stage
from eligo.selection import Selection
from eligo.shots.pool.pool import Pool

KIND = "shots"
QUERY = "question"
"""The name of the picture that the question is about."""


def record(
    question: str,
    pool: Pool,
    candidates: Sequence[str],
    selections: Mapping[str, Selection],
    *,
    picture: Image.Image | None = None,
    pictures: Mapping[str, Image.Image] | None = None,
    answers: Sequence[Answer] = (),
    notes: Mapping[str, str] | None = None,
    cost: Mapping[str, str] | None = None,
    title: str | None = None,
    note: str = "",
) -> ExplorerRecord:
    """A question and the examples that selectors picked for it, a stage for each selector.

    `candidates` are ids, `selections` choose rows of the pool, by the name of who chose; `picture`
    is the question's, `pictures` are those of the candidates that have one, by id, and `notes` say
    something about some of them.
    """
    known = {name: image for name, image in (pictures or {}).items() if name in candidates}
    rows = pool.rows(candidates).tolist()
    said = notes or {}
    items = tuple(
        Item(
            pool.texts[row] if pool.payload is not None else name,
            name if name in known else None,
            said.get(name, ""),
        )
        for name, row in zip(candidates, rows, strict=True)
    )
    shown = {} if picture is None else {QUERY: picture}
    return ExplorerRecord(
        title=title or question,
        kind=KIND,
        query=question,
        stages=tuple(Stage(name, _among(found, rows), items) for name, found in selections.items()),
        pictures={**shown, **known},
        answers=tuple(answers),
        cost=dict(cost or {}),
        note=note,
    )


def _among(selection: Selection, rows: Sequence[int]) -> Selection:
    """A choice from the pool as one from the candidates."""
    selection = selection.to("cpu")
    place = {row: number for number, row in enumerate(rows)}
    picks = [place[row] for row in selection.indices.tolist() if row >= 0]
    where = torch.tensor(rows, dtype=torch.int64)
    return Selection(
        torch.tensor(picks, dtype=torch.int64), selection.scores[where], selection.mask[where]
    )
