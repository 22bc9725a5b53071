"""Segmentation metrics from a confusion matrix, which may be summed over batches.

Departure from the original: a class that is neither labelled nor predicted is left out of the mean
(`miou`); the original counts it as 0 (`miou_reference`).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Integer
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.pixels.config import IGNORED


@dataclass(frozen=True)
class SegmentationMetrics:
    """All in percent; NaN where undefined."""

    miou: float
    """Mean IoU over the classes that are labelled or predicted somewhere."""
    miou_reference: float
    """As in the original: mean IoU over all classes, absent ones as 0."""
    pixel_acc: float
    """Share of labelled pixels with the right class."""
    macc: float
    """Mean over the labelled classes of their pixel accuracy."""
    f1: float
    """Mean over the same classes as miou of 2 TP / (2 TP + FP + FN)."""
    iou_per_class: tuple[float, ...]
    """TP / (TP + FP + FN)."""
    acc_per_class: tuple[float, ...]
    """TP / (TP + FN)."""


def confusion_matrix(
    predictions: Integer[Tensor, "*shape"], labels: Integer[Tensor, "*shape"], num_classes: int
) -> Int[Tensor, "classes classes"]:
    """Count pixels by label (row) and prediction (column), without ignored ones; does not sync."""
    counted = labels != IGNORED
    if values_are_free(predictions, labels):
        _check_range("labels", labels[counted], num_classes)
        _check_range("predictions", predictions[counted], num_classes)
    cells = num_classes * num_classes
    cell = torch.where(counted, labels.long() * num_classes + predictions.long(), cells).flatten()
    counts = torch.zeros(cells + 1, dtype=torch.int64, device=labels.device)  # last: ignored pixels
    counts.scatter_add_(0, cell, torch.ones_like(cell))
    return counts[:cells].view(num_classes, num_classes)


def segmentation_metrics(confusion: Int[Tensor, "classes classes"]) -> SegmentationMetrics:
    """Return the metrics of a confusion matrix."""
    counts = confusion.double().cpu()
    right, labelled, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    iou = 100 * right / (labelled + predicted - right)  # 0 / 0 is NaN
    accuracy = 100 * right / labelled
    f1 = 200 * right / (labelled + predicted)
    return SegmentationMetrics(
        miou=iou.nanmean().item(),
        miou_reference=iou.nan_to_num(0.0).mean().item(),
        pixel_acc=(100 * right.sum() / counts.sum()).item(),
        macc=accuracy.nanmean().item(),
        f1=f1.nanmean().item(),
        iou_per_class=tuple(iou.tolist()),
        acc_per_class=tuple(accuracy.tolist()),
    )


def _check_range(name: str, values: Tensor, num_classes: int) -> None:
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
        raise InputError(
            f"{name}: got values from {int(values.min())} to {int(values.max())}, expected 0 to "
            f"{num_classes - 1}, or {IGNORED} for labels that do not count"
        )
