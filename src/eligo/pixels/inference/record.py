"""A segmented image for the explorer: where each word is attended to, and words by attention."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Integer
from PIL import Image
from torch import Tensor

from eligo.explorer.record import Answer, ExplorerRecord, Grid, Item, Key, Stage
from eligo.pixels.inference.predict import PixelsPrediction
from eligo.report.pixels_picture import labels_legend, labels_over
from eligo.selection import Selection

KIND = "pixels"
_NOTE = "Marked are the places that attend to this word more than to any other."


def record(
    prediction: PixelsPrediction,
    *,
    depth: Image.Image | None = None,
    labels: Mapping[str, Integer[Tensor, "height width"]] | None = None,
    answers: Sequence[Answer] = (),
    cost: Mapping[str, str] | None = None,
    title: str | None = None,
    note: str = "",
) -> ExplorerRecord:
    """Return an image and its words: a map for each word, and the words by attention.

    `depth` is a picture to lay the maps over as well; `labels` are further segmentations to show
    (without words, the ground truth).
    """
    query = ", ".join(prediction.words) or "no words"
    shown = {"image": prediction.image}
    if depth is not None:
        shown["depth"] = depth
    legends = {}
    for name, label_map in {"labels": prediction.labels, **(labels or {})}.items():
        shown[name] = labels_over(prediction.image, label_map, prediction.classes)
        legends[name] = tuple(
            Key(f"#{bytes(colour).hex()}", text)
            for colour, text in labels_legend(label_map, prediction.classes)
        )
    stages: list[Stage] = []
    if prediction.tag_maps is not None and prediction.selection is not None:
        stages = [
            _maps(prediction.tag_maps, prediction.words),
            _words(prediction.selection.to("cpu"), prediction.words),
        ]
    return ExplorerRecord(
        title=title or query,
        kind=KIND,
        query=query,
        stages=tuple(stages),
        pictures=shown,
        legends=legends,
        answers=tuple(answers),
        cost=dict(cost or {}),
        note=note,
    )


def _maps(maps: Float[Tensor, "words map_height map_width"], words: Sequence[str]) -> Stage:
    """One row for each word, by highest attention; kept are the places where it comes first."""
    scores = maps.detach().float().cpu().flatten(1)
    order = scores.amax(1).argsort(descending=True, stable=True)
    scores, names = scores[order], tuple(words[int(row)] for row in order)
    first = scores.argmax(0) == torch.arange(len(scores))[:, None]  # (words, places)
    ranked = torch.where(first, scores, -torch.inf)
    kept = Selection.top_k(ranked, first.sum(-1), first)
    return Stage(
        name="attention to each word",
        selection=Selection(kept.indices, scores, torch.ones_like(first)),
        over=Grid("image", *maps.shape[1:]),
        rows=names,
        note=_NOTE,
    )


def _words(selection: Selection, words: Sequence[str]) -> Stage:
    """All words, by attention."""
    count = len(words)
    row = Selection(
        selection.indices[0][:count], selection.scores[0][:count], selection.mask[0][:count]
    )
    return Stage("words by attention", row, tuple(Item(word) for word in words))
