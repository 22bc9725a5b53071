"""A prediction for the explorer: what was chosen beside what was not, with scores and reasons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from eligo.explorer.record import Answer, ExplorerRecord
from eligo.images import open_image
from eligo.shots.data.query import Query
from eligo.shots.inference.predict import Deployed
from eligo.shots.inference.selection_record import record
from eligo.shots.pool.pool import Pool

_SIDE = 512  # pixels of an example's picture: there are dozens
_NOTE = "Scores are those of the first step; what a pick was worth at its own step stands by it."


def show(
    deployed: Deployed,
    query: Query,
    question: str,
    chosen: Sequence[Mapping[str, Any]],
    *,
    image: str | None = None,
    answer: tuple[str, str] | None = None,
) -> ExplorerRecord:
    """What `explain` told of a question, over all candidates; `answer`: who said what behind it."""
    selector = deployed.selector
    names = deployed.sampler.names(query)
    found = selector.select(query, len(chosen), candidates=names)
    return record(
        question,
        selector.pool,
        names,
        {f"pointer {selector.model.config.version}": found},
        picture=None if image is None else open_image(image),
        pictures=_pictures(selector.pool, names),
        notes=_notes(chosen),
        answers=() if answer is None else (Answer(*answer),),
        cost={"candidates": f"{len(selector.pool)} > {len(names)} > {len(chosen)} chosen"},
        note=_NOTE,
    )


def _notes(chosen: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By id: of picks their worth, of others why they came next and were not taken."""
    told: dict[str, str] = {}
    for row in chosen:
        if row["next best"] is not None:  # of several steps the last, which saw all picks before
            told[row["next best"]] = f"next best for pick {row['pick']}: {row['why not']}"
    for row in chosen:
        told[row["id"]] = (
            f"pick {row['pick']}: score {row['score']:.3g}, probability {row['probability']:.2g}"
        )
    return told


def _pictures(pool: Pool, names: Sequence[str]) -> dict[str, Image.Image]:
    """Of the candidates that have one here: a selector may travel without its images."""
    payload = pool.payload
    if payload is None:
        return {}
    found = {}
    for name, row in zip(names, pool.rows(names).tolist(), strict=True):
        path = payload[row].get("image") if isinstance(payload[row], Mapping) else None
        if path is not None and Path(path).is_file():
            found[name] = open_image(path, _SIDE)
            found[name].thumbnail((_SIDE, _SIDE))
    return found
