"""Evaluation of a model on a split: one row of metrics for every provenance of words.

Every image counts once; oracle words are never the main result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.records import Split
from eligo.pixels.inference.multi_scale import MultiScale, probabilities
from eligo.pixels.metrics import SegmentationMetrics, confusion_matrix, segmentation_metrics
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import Provenance

_ONE_PASS = MultiScale()


@dataclass(frozen=True)
class EvaluationRow:
    """Metrics of a model with words of one provenance."""

    words: Provenance
    images: int
    metrics: SegmentationMetrics

    def summary(self) -> dict[str, Any]:
        """Return the metrics over all classes, with the provenance and the number of images."""
        means = {k: v for k, v in vars(self.metrics).items() if isinstance(v, float)}
        return {"words": self.words, "images": self.images, **means}


@torch.no_grad()
def split_confusion(
    model: PixelsModel,
    source: ImageSource,
    split: Split,
    provenance: Provenance,
    passes: MultiScale = _ONE_PASS,
    batch_size: int = 32,
    watch: Callable[[Batch, Tensor], None] | None = None,
) -> tuple[Int[Tensor, "classes classes"], int]:
    """Return the confusion matrix of a split, and its number of images.

    `watch` is called with every batch and its probabilities.
    """
    classes = model.config.num_classes
    device = next(model.parameters()).device
    total, images = torch.zeros(classes, classes, dtype=torch.int64, device=device), 0
    for batch in source.images(split, provenance, batch_size):
        found = probabilities(model, batch, passes)
        total += confusion_matrix(found.argmax(1), batch.labels, classes)
        if watch is not None:
            watch(batch, found)
        images += len(batch.labels)
    return total, images


def evaluate_rows(
    model: PixelsModel,
    source: ImageSource,
    split: Split,
    passes: MultiScale = _ONE_PASS,
    batch_size: int = 32,
    provenances: tuple[Provenance, ...] | None = None,
) -> list[EvaluationRow]:
    """Return a row for every provenance of the source, the main result first."""
    rows = []
    for provenance in provenances or source.provenances:
        total, images = split_confusion(model, source, split, provenance, passes, batch_size)
        rows.append(EvaluationRow(provenance, images, segmentation_metrics(total)))
    return rows
