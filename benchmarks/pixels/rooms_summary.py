"""Mean IoU of every arm of the study on rooms, differences with intervals, and targets.

The mean IoU of a set of frames comes from their summed counts. The bootstrap draws whole frames
and trainings, the same for all arms, so differences are paired.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.studies import reached_or_not
from eligo.cli.console import compact_table, print_text, results

Counts = Mapping[str, np.ndarray]
"""Right, labelled and predicted pixels, (frames, 3, classes), by the words of the test."""
Key = tuple[str, str]
"""An arm, and the words of the test."""
ONLY = "only "
"""Before the kind of tags: a network without words, which may predict only the tags' classes."""
_GAIN, _HARM = 5.0, 2.0  # points of mean IoU
_COMPARED: tuple[tuple[Key, Key], ...] = (
    (("both, true", "tagger"), ("both, none", ONLY + "tagger")),
    (("words dropped 0", "tagger"), ("both, none", "none")),
    (("depth, none", "none"), ("both, none", "none")),
    (("depth, true", "true"), ("both, true", "true")),
    (("both, true", "true"), ("rgb, true", "true")),
)
"""Differences that no row shows."""


class Bootstrap:
    """Mean IoU of every arm and kind of words: of all frames, and of every resample."""

    def __init__(self, found: Mapping[str, Sequence[Counts]], resamples: int) -> None:
        first = next(iter(found.values()))
        frames, runs = len(next(iter(first[0].values()))), len(first)
        random = np.random.default_rng(0)
        times = random.multinomial(frames, np.full(frames, 1 / frames), size=resamples)
        times = times.astype(np.float32)
        weights = random.multinomial(runs, np.full(runs, 1 / runs), size=resamples) / runs
        self.means: dict[Key, float] = {}
        self.drawn: dict[Key, np.ndarray] = {}
        for arm, by_run in found.items():
            for words in by_run[0]:
                counts = [run[words] for run in by_run]
                self.means[arm, words] = float(np.mean([mean_iou(c.sum(0)) for c in counts]))
                ious = [mean_iou(_drawn_sums(times, part)) for part in counts]
                self.drawn[arm, words] = (np.stack(ious, 1) * weights).sum(1)

    def interval(self, key: Key, than: Key | None = None) -> dict[str, Any]:
        """Return the mean IoU, or its difference from another one, with its 95 % interval."""
        mean, drawn = self.means[key], self.drawn[key]
        if than is not None:
            mean, drawn = mean - self.means[than], drawn - self.drawn[than]
        low, high = np.percentile(drawn, (2.5, 97.5))
        return {"points": mean, "low": float(low), "high": float(high)}


def _drawn_sums(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of the counts of drawn frames, (resamples, 3, classes)."""
    flat = counts.reshape(len(counts), -1).astype(np.float32)
    return (times @ flat).reshape(len(times), *counts.shape[1:])


def mean_iou(counts: np.ndarray) -> Any:
    """Return the mean IoU in percent of counts (..., 3, classes), over classes that occur."""
    right, labelled, predicted = np.moveaxis(np.asarray(counts, np.float64), -2, 0)
    union = labelled + predicted - right
    iou = np.divide(100 * right, union, out=np.full_like(right, np.nan), where=union > 0)
    return np.nanmean(iou, -1)


def summarise(
    found: Mapping[str, Sequence[Counts]],
    own: Mapping[str, str],
    against: Mapping[str, str],
    resamples: int,
) -> dict[str, Any]:
    """Return a row for every arm, its difference from another one, and targets.

    `own` are the words that an arm was trained with, `against` the arm that it is compared with.
    """
    drawn = Bootstrap(found, resamples)
    rows = []
    for arm, runs in found.items():
        key, other = (arm, own[arm]), against.get(arm)
        row: dict[str, Any] = {"arm": arm, "runs": len(runs), "words": own[arm]}
        row |= drawn.interval(key)
        row["by seed"] = [round(float(mean_iou(run[own[arm]].sum(0))), 2) for run in runs]
        if other is not None and other in found:
            row["ahead of"] = {"arm": other, **drawn.interval(key, (other, own[other]))}
            if (simple := ONLY + own[arm]) in found[other][0]:
                row["ahead of only"] = drawn.interval(key, (other, simple))
        if ONLY + "true" in runs[0]:
            kinds = (words for words in runs[0] if words.startswith(ONLY))
            row["tested with"] = {words: drawn.means[arm, words] for words in ("none", *kinds)}
        if "other" in runs[0]:
            row["tested with"] = {words: drawn.means[arm, words] for words in runs[0]}
            if other is not None and other in found:
                row["tagger's ahead"] = drawn.interval((arm, "tagger"), (other, own[other]))
            row["other less none"] = drawn.interval((arm, "other"), (arm, "none"))
        rows.append(row)
    compared = [
        {"arm and words": key, "less": than, **drawn.interval(key, than)}
        for key, than in _COMPARED
        if key in drawn.means and than in drawn.means
    ]
    targets = _targets({row["arm"]: row for row in rows})
    return {"arms": rows, "compared": compared, "targets": targets}


def _targets(rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    limits = {
        "both, true": _GAIN, "both, tagger": 0.0, "both, none": 0.0,
        "S, true": _GAIN, "S, tagger": 0.0,
    }  # fmt: skip
    targets = []
    for arm, limit in limits.items():
        lead = rows.get(arm, {}).get("ahead of")
        if lead is not None:
            met = lead["points"] >= limit and lead["low"] > 0
            text = f"{arm} against {lead['arm']}: {_shown(lead)}"
            targets.append({"met": met, "text": f"{text} (at least {limit:g}, interval above 0)"})
    for arm in ("both, true", "both, tagger", "S, true", "S, tagger"):
        lead = rows.get(arm, {}).get("ahead of only")
        if lead is not None:
            text = f"{arm} against no words, only the classes of the tags: {_shown(lead)}"
            targets.append({"met": lead["low"] > 0, "text": f"{text} (interval above 0)"})
    lead = rows.get("both, true", {}).get("tagger's ahead")
    if lead is not None:
        text = f"both, true, tested with the tagger's tags, against both, none: {_shown(lead)}"
        targets.append({"met": lead["low"] > 0, "text": f"{text} (interval above 0)"})
    for arm, row in rows.items():
        harm = row.get("other less none")
        if harm is not None and row["words"] == "true" and "ahead of" in row:
            text = f"{arm}: another frame's tags instead of none: {_shown(harm)}"
            text += f" (at least -{_HARM:g})"
            targets.append({"met": harm["points"] >= -_HARM, "text": text})
    return targets


def _shown(interval: Mapping[str, Any]) -> str:
    return f"{interval['points']:+.1f} ({interval['low']:+.1f} to {interval['high']:+.1f})"


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the tagger, the table of arms and the targets."""
    for part in ("train", "test"):
        tagger = summary["tagger"][part]
        shown = f"precision {tagger['precision']:.3f}, recall {tagger['recall']:.3f}"
        print_text(f"tagger, {part} frames: {shown}")
    kinds = ("none", "true", "tagger", "other")
    table = compact_table(
        "mean IoU (%) on the test frames",
        "ahead: less the arm of its row in the config, 95 % interval over frames and trainings · "
        "then the same checkpoints, tested with other words; without words in training, only the "
        "classes of the tags may be predicted",
        ("arm",),
        ["mIoU", "ahead", *kinds],
    )
    for row in summary["arms"]:
        lead, tested = row.get("ahead of"), row.get("tested with", {})
        by_kind = [tested.get(kind, tested.get(ONLY + kind)) for kind in kinds]
        table.add_row(
            row["arm"], f"{row['points']:.1f}", "-" if lead is None else _shown(lead),
            *("-" if points is None else f"{points:.1f}" for points in by_kind),
        )  # fmt: skip
    results().print(table)
    for target in summary["targets"]:
        print_text(f"{reached_or_not(target['met'])}: {target['text']}")
