"""A page of search results: for each query the photos that were found, as thumbnails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.images import open_image
from eligo.report.page import Html, card, figure, link, page, row, tag, write_page

__all__ = ["search_page", "write_page"]
_SIDE = 256  # pixels of a thumbnail


def search_page(
    root: Path, searches: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], note: str = ""
) -> Html:
    """Return a page of queries, each with its results: id (a path below `root`), rank and score.

    `note`: what a reader of the results has to know.
    """
    cards = [
        card(query, row(*(_thumbnail(root, found) for found in results)))
        for query, results in searches
    ]
    title = searches[0][0] if len(searches) == 1 else f"{len(searches)} searches"
    lead = f"Photos in {root}. A click opens the photo itself."
    return page(title, *cards, lead=lead, footer=note)


def _thumbnail(root: Path, found: Mapping[str, Any]) -> Html:
    path = root / found["id"]
    caption = f"{found['rank']}. {found['id']} ({found['score']:.3f})"
    try:
        picture = open_image(path, _SIDE // 2)
    except InputError as error:
        return tag("figure", tag("figcaption", caption, ": ", str(error)))
    picture.thumbnail((_SIDE, _SIDE))
    return link(path.absolute().as_uri(), figure(picture, caption, alt=found["id"], photo=True))
