"""Summary of the study on photos: accuracies, differences and targets, from the right answers.

Accuracies are means over families, in percent. Intervals are 95 %, from a paired bootstrap over
trainings and photos, each with all its questions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tokens.summary import Results
from eligo.report.intervals import bootstrap_means
from eligo.tokens.inference.evaluate import WHOLE
from eligo.tokens.metrics import ALL

MEAN = "mean"
"""Name of the mean over families."""
OURS, BLIND = "two_stage", "two_stage_blind"
_SIMPLE = ("random", "pool")
_TRAINED = (OURS, "merger_alone", "pruners_alone", "vision_selector")
"""Beginnings of the names of trained methods."""
_MOST_LOST, _LEAST_SAVED = 3.0, 0.6


@dataclass(frozen=True)
class PhotoResults(Results):
    """Right answers by variant and run, with the photo of each question."""

    photos: Sequence[int] = field(default=(), kw_only=True)
    exceeding: Sequence[str] = field(default=(), kw_only=True)
    """Variants whose cheapest setting costs more than their point."""

    def accuracies_of(self, run: str) -> dict[str, float]:
        """Return the percentage of right answers of one run by family, and their mean."""
        found = super().accuracies_of(run)
        del found[ALL]
        return found | {MEAN: sum(found.values()) / len(found)}

    def difference(
        self, variant: str, other: str, family: str = MEAN
    ) -> tuple[float, float, float]:
        """Return the lead of a variant over another in points, with interval."""
        ours, theirs = self.variants[variant], self.variants[other]
        count = max(len(ours), len(theirs))
        asked = Counter(self.families)
        total = len(self.families)
        # The mean over questions with these weights is the mean over families.
        weight = {
            name: 100.0 * total / (asked[name] * (len(asked) if family == MEAN else 1))
            for name in asked
            if family in (name, MEAN)
        }
        rows = [
            [
                weight.get(of, 0.0) * (int(a) - int(b))
                for of, a, b in zip(
                    self.families, self.right[ours[i % len(ours)]],
                    self.right[theirs[i % len(theirs)]], strict=True,
                )
            ]
            for i in range(count)
        ]  # fmt: skip
        return bootstrap_means([rows], resamples=self.resamples, groups=self.photos)[0]

    def packed(self) -> dict[str, Any]:
        """Return a compact form for a result file."""
        return super().packed() | {"photos": self.photos, "exceeding": self.exceeding}

    @classmethod
    def unpacked(cls, document: Mapping[str, Any]) -> "PhotoResults":
        """Read the compact form of a result file."""
        base = Results.unpacked(document)
        others = {name: document[name] for name in ("photos", "exceeding")}
        return cls(**vars(base), **others)


def is_trained(method: str) -> bool:
    """Whether a method of the study was trained."""
    return method.startswith(_TRAINED)


def summarise(results: PhotoResults) -> dict[str, Any]:
    """Return the summary as plain values."""
    comparisons = _comparisons(results)
    return {
        "variants": [_row(results, variant) for variant in results.variants],
        "comparisons": comparisons,
        "targets": _targets(results, comparisons),
    }


def _row(results: PhotoResults, variant: str) -> dict[str, Any]:
    runs = results.variants[variant]
    prefix = "other host, " if variant.startswith("other host, ") else ""
    lost, low, high = results.difference(prefix + WHOLE, variant)
    cost = results.cost.get(runs[0], {})
    kept = ("kept", "layers", "vision_keep_mean", "flops_reduction_llm",
            "flops_reduction_with_selector")  # fmt: skip
    return {
        "variant": variant,
        "runs": len(runs),
        "accuracy": results.accuracies(variant),
        "by_run": [results.accuracies_of(run)[MEAN] for run in runs],
        "lost": lost,
        "low": low,
        "high": high,
        "exceeds": variant in results.exceeding,
        **{name: cost[name] for name in kept if name in cost},
    }


def _comparisons(results: PhotoResults) -> list[dict[str, Any]]:
    """Compare two stages with everything else at the same point, by family and in the mean."""
    rows = []
    for point in results.allowed:
        ours = f"{OURS}@{point}"
        if ours not in results.variants:
            continue
        for other in results.variants:
            if other == ours or not other.endswith(f"@{point}") or "," in other:
                continue
            for family in (MEAN, *dict.fromkeys(results.families)):
                ahead, low, high = results.difference(ours, other, family)
                rows.append(
                    {"point": point, "other": other.partition("@")[0], "family": family}
                    | {"ahead": ahead, "low": low, "high": high}
                )
    return rows


def _targets(results: PhotoResults, comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lead = {(row["point"], row["other"]): row for row in comparisons if row["family"] == MEAN}
    targets = []
    for point in results.allowed:
        row = _row(results, f"{OURS}@{point}")
        saved, kept = row["flops_reduction_with_selector"], row["vision_keep_mean"]
        cheap = saved > _LEAST_SAVED and 1 - kept > _LEAST_SAVED
        simple = [lead[point, name] for name in _SIMPLE if (point, name) in lead]
        met = row["lost"] < _MOST_LOST and cheap and all(one["low"] > 0 for one in simple)
        text = (
            f"{point} tokens: {row['lost']:.2f} points lost ({row['low']:.2f} to "
            f"{row['high']:.2f}; target < {_MOST_LOST:g}), {saved:.0%} of the FLOPs saved, "
            f"{1 - kept:.0%} of the vision tokens; " + "; ".join(map(_ahead, simple))
        )
        targets.append({"target": f"little lost@{point}", "met": met, "text": text})
        others = [r for (at, name), r in lead.items() if at == point and not is_trained(name)]
        composed = [r for r in others if "+" in r["other"]]
        rivals = [r for r in others if r not in composed]
        level = [r["other"] for r in rivals if r["low"] <= 0]
        closest = min(rivals, key=lambda r: r["ahead"])
        text = (
            f"{point} tokens: closest training-free method: {_ahead(closest)}; not clearly ahead "
            f"of: {', '.join(level) or 'none'}"
        )
        targets.append({"target": f"ahead@{point}", "met": not level, "text": text})
        if composed:
            text = f"{point} tokens, same schedule: " + "; ".join(map(_ahead, composed))
            met = all(r["low"] > 0 for r in composed)
            targets.append({"target": f"learning@{point}", "met": met, "text": text})
        if (point, BLIND) in lead:
            row = lead[point, BLIND]
            text = f"{point} tokens: the question: {_ahead(row)}"
            targets.append({"target": f"question@{point}", "met": row["low"] > 0, "text": text})
    return targets


def _ahead(row: Mapping[str, Any]) -> str:
    return f"{row['ahead']:+.2f} against {row['other']} ({row['low']:+.2f} to {row['high']:+.2f})"
