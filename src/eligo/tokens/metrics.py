"""Accuracy by question family, and the accuracy that a pruned model loses on the same questions.

Answers are compared by the VQA accuracy of `eligo.vqa`; intervals are 95 %.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eligo.report.intervals import wilson_interval

ALL = "all"
"""Name of the row over all families."""


@dataclass(frozen=True)
class FamilyDrop:
    """Accuracy of the whole and of the pruned model in one family, from 0 to 1."""

    family: str
    asked: int
    """Number of questions."""
    whole: float
    pruned: float
    drop: float
    drop_low: float
    drop_high: float
    """95 % interval of the drop, over groups of questions."""


def paired_drop(
    whole: Iterable[int | float],
    pruned: Iterable[int | float],
    groups: Iterable[Hashable] | None = None,
) -> tuple[float, float, float]:
    """Return the mean loss of accuracy on the same questions, with its normal 95 % interval.

    Questions of one group, such as those on one image, are not independent of each other; groups
    are (standard error of a clustered sample).

    >>> paired_drop([1, 1, 1, 1], [1, 1, 0, 1])[0]
    0.25
    """
    drops = [a - b for a, b in zip(whole, pruned, strict=True)]
    mean = sum(drops) / len(drops)
    sums: dict[Hashable, float] = defaultdict(float)
    for name, drop in zip(range(len(drops)) if groups is None else groups, drops, strict=True):
        sums[name] += drop - mean
    variance = sum(total**2 for total in sums.values()) * len(sums) / max(1, len(sums) - 1)
    margin = 1.96 * math.sqrt(variance) / len(drops)
    return mean, mean - margin, mean + margin


def drop_by_family(
    families: Sequence[str],
    whole: Sequence[int | float],
    pruned: Sequence[int | float],
    groups: Sequence[Hashable] | None = None,
) -> list[FamilyDrop]:
    """Return one row per family (if there are several) and one over all questions."""
    groups = range(len(families)) if groups is None else groups
    names = [name for name in dict.fromkeys(families) if name]
    rows = []
    for name in [*(names if len(names) > 1 else []), ALL]:
        pairs = [
            pair
            for family, *pair in zip(families, whole, pruned, groups, strict=True)
            if name in (family, ALL)
        ]
        full, less, of_image = zip(*pairs, strict=True)
        count = len(pairs)
        drop, low, high = paired_drop(full, less, of_image)
        rows.append(FamilyDrop(name, count, sum(full) / count, sum(less) / count, drop, low, high))
    return rows


def accuracy_by_family(families: Sequence[str], right: Sequence[bool]) -> list[dict[str, Any]]:
    """Return accuracies with Wilson's 95 % interval: over all questions, then by family."""
    rows = []
    for name in (ALL, *dict.fromkeys(families)):
        hits = [hit for hit, family in zip(right, families, strict=True) if name in (family, ALL)]
        low, high = wilson_interval(sum(hits), len(hits))
        rows.append(
            {"family": name, "asked": len(hits), "right": sum(hits)}
            | {"accuracy": sum(hits) / len(hits), "low": low, "high": high}
        )
    return rows


def as_bits(right: Sequence[bool]) -> str:
    """Return one character per question, 1 if the answer was right.

    >>> as_bits([True, False])
    '10'
    """
    return "".join("01"[hit] for hit in right)
