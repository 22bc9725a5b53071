"""Selections of examples as records of the explorer: the picks beside the other candidates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from eligo.explorer.record import Answer, ExplorerRecord, Item, Stage
from eligo.images import open_image
from eligo.selection import Selection
from eligo.shots.pool.pool import Pool

KIND = "shots"
QUERY = "question"
"""Name of the question's picture."""
_SIDE = 512  # pixels of an example's picture: there are dozens


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
    """Return the record of a question, with a stage for each selector.

    `candidates` are ids; `selections` choose rows of the pool, by the selector's name; `picture` is
    the question's; `pictures` and `notes` belong to candidates, by id.
    """
    known = {name: image for name, image in (pictures or {}).items() if name in candidates}
    rows = pool.rows(candidates).tolist()
    items = tuple(
        Item(
            pool.texts[row] if pool.payload is not None else name,
            name if name in known else None,
            (notes or {}).get(name, ""),
        )
        for name, row in zip(candidates, rows, strict=True)
    )
    return ExplorerRecord(
        title=title or question,
        kind=KIND,
        query=question,
        stages=tuple(
            Stage(name, among_candidates(selection, rows), items)
            for name, selection in selections.items()
        ),
        pictures={**({} if picture is None else {QUERY: picture}), **known},
        answers=tuple(answers),
        cost=dict(cost or {}),
        note=note,
    )


def among_candidates(selection: Selection, rows: Sequence[int]) -> Selection:
    """Return a selection from the pool as one from some of its rows."""
    selection = selection.to("cpu")
    position = {row: number for number, row in enumerate(rows)}
    picks = [position[row] for row in selection.indices.tolist() if row >= 0]
    where = torch.tensor(rows, dtype=torch.int64)
    return Selection(
        torch.tensor(picks, dtype=torch.int64), selection.scores[where], selection.mask[where]
    )


def candidate_pictures(pool: Pool, names: Sequence[str]) -> dict[str, Image.Image]:
    """Open the images of candidates, where their files exist."""
    payload = pool.payload
    if payload is None:
        return {}
    pictures = {}
    for name, row in zip(names, pool.rows(names).tolist(), strict=True):
        path = payload[row].get("image") if isinstance(payload[row], Mapping) else None
        if path is not None and Path(path).is_file():
            pictures[name] = open_image(path, _SIDE)
            pictures[name].thumbnail((_SIDE, _SIDE))
    return pictures
