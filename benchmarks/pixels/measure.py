"""Measures of a trained variant on the test scenes, part by part. Shares are 0-1."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.pixels.data.batch import Batch
from eligo.pixels.data.scene_source import SceneSet, SceneSource
from eligo.pixels.metrics import confusion_matrix
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import Provenance
from eligo.scenes import words
from eligo.scenes.graph import CAMOUFLAGED, NUM_BINDINGS
from eligo.scenes.painter import slot_labels

_BATCH = 50
_ALL = slice(None)
_NONCE = slice(2, 2 + NUM_BINDINGS)  # without wall, floor and clutter
_MIN_PIXELS = 10  # of an instance that counts
PHRASES = (4, 8, 16, 32)
NOISE = ((1.0, 1.0), (0.9, 0.9), (0.9, 0.7), (0.7, 0.9), (0.7, 0.7), (0.5, 0.5))
"""Precision and recall of taggers."""


def _rows(scenes: SceneSet) -> Iterator[Tensor]:
    device = scenes.rendered.rgb.device
    yield from torch.arange(len(scenes), device=device).split(_BATCH)


def _classes(
    model: PixelsModel, batch: Batch, subset: slice = _ALL
) -> Int[Tensor, "batch height width"]:
    """The most probable of these classes at every pixel."""
    output = model(batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False)
    return output.logits[:, subset].argmax(1) + (subset.start or 0)


def _no_pixels(model: PixelsModel) -> Int[Tensor, "classes classes"]:
    size = (model.config.num_classes,) * 2
    return torch.zeros(size, dtype=torch.int64, device=next(model.parameters()).device)


def _iou(confusion: Int[Tensor, "classes classes"], classes: list[int]) -> float:
    """Mean over those of the classes that are labelled or predicted somewhere."""
    counts = confusion.double()
    right = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - right
    return float((right / union)[classes].nanmean())


# ------------------------------------------------------------------ twins

_PAIRS = [(words.LABELS.index(one), words.LABELS.index(two)) for one, two in words.TWINS.items()]
_TWINS = [label for pair in _PAIRS for label in pair]
_OTHERS = [label for label in range(len(words.LABELS)) if label not in _TWINS]


@torch.no_grad()
def measure_twins(model: PixelsModel, source: SceneSource) -> dict[str, Any]:
    """Segment every test scene twice, the second time with the other names of all twins."""
    scenes = source.scenes("test")
    worlds = (scenes, scenes.renamed())
    total = _no_pixels(model)
    per_scene: list[float] = []
    for rows in _rows(scenes):
        right, count = torch.zeros(2, len(rows), device=total.device).unbind()
        for world in worlds:
            batch = world.batch(rows, source.inputs, source.words(world, rows, "oracle", 0))
            guess, labels = _classes(model, batch), batch.labels.long()
            total += confusion_matrix(guess, labels, len(total))
            twin = torch.isin(labels, torch.tensor(_TWINS, device=labels.device))
            right = right + ((guess == labels) & twin).flatten(1).sum(1)
            count = count + twin.flatten(1).sum(1)
        per_scene += (right / count)[count > 0].tolist()
    return {
        "twin_iou": _iou(total, _TWINS),
        "merged_iou": _iou(_merged(total), [one for one, _ in _PAIRS]),
        "other_iou": _iou(total, _OTHERS),
        "per_scene": per_scene,
        "noise": [
            *(_tagged(model, source, scenes, *noise) for noise in NOISE),
            _with_words(model, source, scenes, "none", "missing"),
            _with_words(model, source, scenes, "shuffled", "shuffled"),
        ],
    }


def _merged(confusion: Tensor) -> Tensor:
    """With both names of a twin pair as first class."""
    merged = confusion.clone()
    for first, second in _PAIRS:
        merged[first] += merged[second]
        merged[second] = 0
        merged[:, first] += merged[:, second]
        merged[:, second] = 0
    return merged


def _tagged(
    model: PixelsModel, source: SceneSource, scenes: SceneSet, precision: float, recall: float
) -> dict[str, Any]:
    """IoU with the words of a simulated tagger."""
    config = scenes.config.replace({"precision": precision, "recall": recall})
    name = f"precision {precision}, recall {recall}"
    return _with_words(model, source, SceneSet(config, scenes.rendered), "predicted", name)


def _with_words(
    model: PixelsModel, source: SceneSource, scenes: SceneSet, provenance: Provenance, name: str
) -> dict[str, Any]:
    """IoU of twins and of other classes with words of one provenance."""
    total = _no_pixels(model)
    for rows in _rows(scenes):
        batch = scenes.batch(rows, source.inputs, source.words(scenes, rows, provenance, 0))
        total += confusion_matrix(_classes(model, batch), batch.labels, len(total))
    return {"tags": name, "twin_iou": _iou(total, _TWINS), "other_iou": _iou(total, _OTHERS)}


# ------------------------------------------------------------------ binding


@torch.no_grad()
def measure_binding(model: PixelsModel, source: SceneSource) -> dict[str, Any]:
    """Share of objects whose pixels mostly have the right nonce class, by number of phrases.

    Only the ten nonce classes are compared, so that chance level is 0.1.
    """
    scenes = source.scenes("test")
    result: dict[str, Any] = {"accuracy": {}}
    for count in PHRASES:
        votes = list(_votes(model, source, scenes, count))
        right, objects = (torch.cat(part) for part in zip(*votes, strict=True))
        result["accuracy"][str(count)] = float(right.sum() / objects.sum())
        if count == max(PHRASES):
            result["per_scene"] = (right / objects.clamp_min(1)).tolist()
    return result


def _votes(
    model: PixelsModel, source: SceneSource, scenes: SceneSet, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Objects named right and visible objects of each scene."""
    for rows in _rows(scenes):
        text = source.words(scenes, rows, "predicted", count)
        guess = _classes(model, scenes.batch(rows, source.inputs, text), _NONCE)
        rendered = scenes.rendered[rows]
        labels = slot_labels(rendered.graph)  # (scenes, slots)
        slots, classes = labels.shape[1] + 1, model.config.num_classes
        place = rendered.instances.flatten(1).long() * classes + guess.flatten(1)
        counts = torch.zeros(len(rows), slots * classes, device=guess.device)
        counts.scatter_add_(1, place, torch.ones_like(place, dtype=counts.dtype))
        counts = counts.view(len(rows), slots, classes)[:, 1:]  # without the room
        shown = counts.sum(-1) >= _MIN_PIXELS
        right = (counts.argmax(-1) == labels) & shown
        yield right.sum(1).float(), shown.sum(1).float()


# ------------------------------------------------------------------ depth


@torch.no_grad()
def measure_depth(model: PixelsModel, source: SceneSource) -> dict[str, Any]:
    """IoU of camouflaged objects with own, no, and another scene's depth.

    TP: their pixels with the right class; FN: their other pixels; FP: pixels of the room, also of
    flat pictures, with the class of an object.
    """
    scenes = source.scenes("test")
    result: dict[str, Any] = {}
    for name in ("own", "zeroed", "shuffled"):
        parts = [_pixel_counts(model, source, scenes, rows, name) for rows in _rows(scenes)]
        right, false, hidden = torch.cat(parts, 1)
        result[name] = {
            "iou": float(right.sum() / (hidden.sum() + false.sum())),
            "recall": float(right.sum() / hidden.sum()),
            "per_scene": (right / (hidden + false).clamp_min(1)).tolist(),
        }
    return result


def _pixel_counts(
    model: PixelsModel, source: SceneSource, scenes: SceneSet, rows: Tensor, depth: str
) -> Tensor:
    """True positives, false positives and hidden pixels of each scene: (3, scenes)."""
    batch = scenes.batch(rows, source.inputs, None)
    if depth == "zeroed" and batch.depth_mask is not None:
        batch = replace(batch, depth_mask=torch.zeros_like(batch.depth_mask))
    if depth == "shuffled":
        other = scenes.batch((rows + 1) % len(scenes), source.inputs, None)
        batch = replace(batch, depth=other.depth, depth_mask=other.depth_mask)
    guess, labels, hidden = _classes(model, batch), batch.labels.long(), _hidden(scenes, rows)
    counted = ((guess == labels) & hidden, (labels < 2) & (guess >= 2), hidden)
    return torch.stack([part.flatten(1).sum(1).float() for part in counted])


def _hidden(scenes: SceneSet, rows: Tensor) -> Tensor:
    """Mask of the pixels of camouflaged objects."""
    rendered = scenes.rendered[rows]
    kind = rendered.graph.kind
    table = torch.cat([torch.zeros_like(kind[:1], dtype=torch.bool), kind == CAMOUFLAGED])
    return table[rendered.instances.long()]


MEASURES = {"twins": measure_twins, "binding": measure_binding, "depth": measure_depth}
