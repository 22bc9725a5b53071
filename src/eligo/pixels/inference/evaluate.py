"""A model on the images of a split: one row of metrics for every provenance of words.

No image counts twice; the truth as words (`oracle`) is never the headline.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.pixels.data.batch import ImageSource
from eligo.pixels.data.records import Split
from eligo.pixels.inference.views import Views, probabilities
from eligo.pixels.metrics import (
    SegmentationMetrics,
    confusion_matrix,
    segmentation_metrics,
)
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import Provenance


@dataclass(frozen=True)
class Row:
    """What a model reached with words of one provenance."""

    words: Provenance
    images: int
    metrics: SegmentationMetrics

    def shown(self) -> dict[str, Any]:
        """The metrics over all classes, beside where the words came from."""
        found = vars(self.metrics)
        means = {name: value for name, value in found.items() if isinstance(value, float)}
        return {"words": self.words, "images": self.images, **means}


@torch.no_grad()
def split_confusion(
    model: PixelsModel,
    source: ImageSource,
    split: Split,
    provenance: Provenance,
    views: Views = Views(),  # noqa: B008 (frozen)
    batch_size: int = 32,
) -> tuple[Int[Tensor, "classes classes"], int]:
    """Pixels of a split by label and prediction, and the number of images."""
    classes = model.config.num_classes
    device = next(model.parameters()).device
    total, images = torch.zeros(classes, classes, dtype=torch.int64, device=device), 0
    for batch in source.images(split, provenance, batch_size):
        predictions = probabilities(model, batch, views).argmax(1)
        total += confusion_matrix(predictions, batch.labels, classes)
        images += len(batch.labels)
    return total, images


def evaluate_rows(
    model: PixelsModel,
    source: ImageSource,
    split: Split,
    views: Views = Views(),  # noqa: B008 (frozen)
    batch_size: int = 32,
    provenances: tuple[Provenance, ...] | None = None,
) -> list[Row]:
    """A row for every provenance that the source has, the headline first."""
    rows = []
    for provenance in provenances or source.provenances:
        total, images = split_confusion(model, source, split, provenance, views, batch_size)
        rows.append(Row(provenance, images, segmentation_metrics(total)))
    return rows
