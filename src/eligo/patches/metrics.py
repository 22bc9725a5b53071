"""Retrieval metrics both ways: recall, ranks, rSum, COCO folds.

Ranks as in VSE++, LAPS and SEPS: of an image's captions the best one counts. Departures: any number
of positives on either side (a mask), ties count against the model (a constant scorer gets the worst
rank, not the best), and the mean recall over all positives is reported too.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError

AT = (1, 5, 10)
_CHUNK = 2**26  # comparisons at a time


@dataclass(frozen=True, eq=False)
class DirectionMetrics:
    """One direction; recalls in percent, ranks from 1 (`ranks` from 0)."""

    any_hit: dict[int, float]
    """R@K: queries with at least one positive among the first K."""
    mean_recall: dict[int, float]
    """Share of a query's positives among the first K, mean over queries."""
    median_rank: float
    """Floor of the median of the best positive's rank, as in the literature."""
    mean_rank: float
    ranks: Int[Tensor, " queries"]
    """0-based rank of each query's best positive."""
    best: Int[Tensor, " queries"]
    """The item that each query ranks first."""


@dataclass(frozen=True, eq=False)
class RetrievalMetrics:
    """Both directions and the sum of the six any-hit recalls."""

    image_to_text: DirectionMetrics
    text_to_image: DirectionMetrics

    @property
    def rsum(self) -> float:
        """Sum of R@1, R@5 and R@10 of both directions: at most 600."""
        return sum(self.image_to_text.any_hit.values()) + sum(self.text_to_image.any_hit.values())

    def as_dict(self) -> dict[str, float]:
        """Return the metrics by flat names, for logs and tables."""
        flat = {"rsum": self.rsum}
        for name, side in (("i2t", self.image_to_text), ("t2i", self.text_to_image)):
            flat |= {f"{name}_r{k}": value for k, value in side.any_hit.items()}
            flat |= {f"{name}_mean_recall{k}": value for k, value in side.mean_recall.items()}
            flat |= {f"{name}_median_rank": side.median_rank, f"{name}_mean_rank": side.mean_rank}
        return flat


def retrieval_metrics(
    scores: Float[Tensor, "images texts"],
    positive_mask: Bool[Tensor, "images texts"] | None = None,
    *,
    captions_per_image: int = 5,
) -> RetrievalMetrics:
    """Return the metrics of a full score matrix.

    Without a mask, captions `5 i ... 5 i + 4` belong to image i. Queries without any positive are
    left out of the means and have rank -1.

    >>> retrieval_metrics(torch.eye(2), captions_per_image=1).rsum
    600.0
    """
    if positive_mask is None:
        positive_mask = blocks_of(captions_per_image, scores.shape, scores.device)
    if not bool(positive_mask.any()):
        raise InputError("positive_mask: marks no pair; expected at least one positive")
    if bool(scores.isnan().any()):
        raise InputError("scores: got NaN; expected finite scores")
    return RetrievalMetrics(
        _direction(scores, positive_mask), _direction(scores.T, positive_mask.T)
    )


def coco_folds(
    scores: Float[Tensor, "images texts"], *, num_folds: int = 5, captions_per_image: int = 5
) -> dict[str, float]:
    """Return COCO 1K metrics: means over five consecutive folds of a 5K score matrix."""
    positive = blocks_of(captions_per_image, scores.shape, scores.device)
    return fold_means(scores, positive, positive.int().argmax(0), num_folds)


def fold_means(
    scores: Float[Tensor, "images texts"],
    positive: Bool[Tensor, "images texts"],
    owners: Int[Tensor, " texts"],
    num_folds: int,
) -> dict[str, float]:
    """Return means of the metrics over consecutive parts of the images, each with its texts."""
    check_folds(len(scores), num_folds)
    size = len(scores) // num_folds
    folds = []
    for fold in range(num_folds):
        rows, columns = slice(fold * size, (fold + 1) * size), owners // size == fold
        metrics = retrieval_metrics(scores[rows][:, columns], positive[rows][:, columns])
        folds.append(metrics.as_dict())
    return {name: sum(metrics[name] for metrics in folds) / num_folds for name in folds[0]}


def check_folds(num_images: int, num_folds: int) -> None:
    """Raise for folds of unequal size."""
    if num_folds < 1 or num_images % num_folds:
        raise InputError(f"folds: got {num_folds}, expected a divisor of the {num_images} images")


def blocks_of(
    captions_per_image: int, shape: torch.Size | tuple[int, int], device: torch.device
) -> Bool[Tensor, "images texts"]:
    """Return the mask in which consecutive captions belong to one image."""
    if shape[0] * captions_per_image != shape[1]:
        raise InputError(
            f"scores: got {tuple(shape)}, expected {captions_per_image} captions per image; set "
            "captions_per_image or give a positive_mask"
        )
    owner = torch.arange(shape[1], device=device) // captions_per_image
    return owner == torch.arange(shape[0], device=device).unsqueeze(1)


def _direction(scores: Tensor, positive: Tensor) -> DirectionMetrics:
    best_ranks, recalls = [], []
    width = int(positive.sum(1).max())
    rows = max(1, _CHUNK // (scores.shape[1] * width))
    for chunk, marked in zip(scores.split(rows), positive.split(rows), strict=True):
        ids = ops.align_left(marked, max(width, 1))  # (queries, positives), -1 pads
        ranks, order = _ranks(chunk, marked, ids)
        real = ids >= 0
        has = real.any(1)
        least = torch.where(real, ranks, scores.shape[1]).amin(1)
        best_ranks.append(torch.where(has, least, -1))
        hits = [((order < k) & real).sum(1) / real.sum(1).clamp_min(1) for k in AT]
        recalls.append(torch.stack(hits, 1)[has])
    ranks, recall = torch.cat(best_ranks), torch.cat(recalls).double()
    valid = ranks[ranks >= 0].double()
    return DirectionMetrics(
        any_hit={k: 100.0 * float((valid < k).double().mean()) for k in AT},
        mean_recall={k: 100.0 * float(recall[:, i].mean()) for i, k in enumerate(AT)},
        median_rank=float(valid.quantile(0.5).floor()) + 1,
        mean_rank=float(valid.mean()) + 1,
        ranks=ranks,
        best=scores.argmax(1),
    )


def _ranks(scores: Tensor, positive: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per positive, the negatives not below it, and all items before it (ties by index)."""
    own = scores.gather(1, ids.clamp_min(0)).unsqueeze(2)  # (queries, positives, 1)
    items, marked = scores.unsqueeze(1), positive.unsqueeze(1)
    negatives = ((items >= own) & ~marked).sum(2)
    index = torch.arange(scores.shape[1], device=scores.device)
    above = (items > own) | ((items == own) & (index < ids.unsqueeze(2)))
    return negatives, negatives + (above & marked).sum(2)
