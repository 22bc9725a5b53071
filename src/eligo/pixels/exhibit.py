"""A segmented image for the explorer: where each word was heard, and how much, over all words."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from eligo.pixels.inference.predict import PixelsPrediction
from eligo.report.explorer.exhibit import Answer, Exhibit, Grid, Item, Stage
from eligo.report.pixels_picture import overlay_picture
from eligo.selection import Selection

KIND = "pixels"
_HEARD = "Marked are the places that look at this word more than at any other."


def exhibit(
    found: PixelsPrediction,
    *,
    depth: Image.Image | None = None,
    pictures: Mapping[str, Image.Image] | None = None,
    answers: Sequence[Answer] = (),
    cost: Mapping[str, str] | None = None,
    title: str | None = None,
    note: str = "",
) -> Exhibit:
    """An image and its words: a map for each word, and the words by attention.

    `depth` is a picture of it, which the maps can be laid over as well; `pictures` are more to look
    at (labels without words, the truth).
    """
    query = ", ".join(found.words) or "no words"
    shown = {"image": found.image}
    if depth is not None:
        shown["depth"] = depth
    shown["labels"] = overlay_picture(found.image, found.labels, found.classes)
    shown |= pictures or {}
    stages: list[Stage] = []
    if found.tag_maps is not None and found.selection is not None:
        stages = [
            _maps(found.tag_maps, found.words),
            _words(found.selection.to("cpu"), found.words),
        ]
    return Exhibit(
        title=title or query,
        kind=KIND,
        query=query,
        stages=tuple(stages),
        pictures=shown,
        answers=tuple(answers),
        cost=dict(cost or {}),
        note=note,
    )


def _maps(maps: Float[Tensor, "words map_height map_width"], words: Sequence[str]) -> Stage:
    """One row for each word; kept are the places where it is the first."""
    scores = maps.detach().float().cpu().flatten(1)
    first = scores.argmax(0) == torch.arange(len(scores))[:, None]  # (words, places)
    ranked = torch.where(first, scores, -torch.inf)
    heard = Selection.top_k(ranked, first.sum(-1), first)
    everywhere = torch.ones_like(first)
    return Stage(
        name="where each word is heard",
        selection=Selection(heard.indices, scores, everywhere),
        over=Grid("image", *maps.shape[1:]),
        rows=tuple(words),
        note=_HEARD,
    )


def _words(selection: Selection, words: Sequence[str]) -> Stage:
    """All words, most looked at first."""
    count = len(words)
    row = Selection(
        selection.indices[0][:count], selection.scores[0][:count], selection.mask[0][:count]
    )
    return Stage("words by attention", row, tuple(Item(word) for word in words))
