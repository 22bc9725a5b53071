"""Summary of a study's runs: variants, differences with intervals, and targets."""

from typing import Any

from eligo.report.intervals import paired_bootstrap
from eligo.report.provenance import made_on

_WORSE = -1.0  # lowest acceptable difference of mean recall, in points
_TIMES_CHANCE = 3.0
_SELECTING = ("open", "relevant", "open_dense", "paper")
"""Variants that select at ratio 0.5; their best patch should be on a mentioned object."""
_PAIRS = (
    ("relevant", "open"), ("open", "ratio_1.0"), ("ratio_0.25", "ratio_1.0"),
    ("ratio_0.75", "ratio_1.0"),
    ("open", "global"), ("open_dense", "global"), ("paper", "global"), ("filip", "global"),
    ("open", "filip"), ("open_dense", "open"), ("paper", "open"),
)  # fmt: skip
_METRICS = ("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "t2i_mean_recall10")


def summarise(resamples: int, results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return variants, comparisons with intervals, and targets; `results` by variant and seed."""
    variants = [_row(name, list(runs.values())) for name, runs in results.items()]
    comparisons = []
    for variant, other in (pair for pair in _PAIRS if set(pair) <= results.keys()):
        differences = [
            [a - b for a, b in zip(left["per_scene"], right["per_scene"], strict=True)]
            for left, right in zip(results[variant].values(), results[other].values(), strict=True)
        ]
        mean, low, high = paired_bootstrap(differences, resamples=resamples)
        names = {"variant": variant, "against": other}
        comparisons.append(names | {"difference": mean, "low": low, "high": high})
    return {
        "made_on": made_on(run for runs in results.values() for run in runs.values()),
        "variants": variants,
        "comparisons": comparisons,
        "targets": check_targets(variants, comparisons),
    }


def _row(variant: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(section: str, name: str) -> float:
        return sum(run[section][name] for run in runs) / len(runs)

    recalls = [run["metrics"]["rsum"] / 6 for run in runs]
    row: dict[str, Any] = {
        "variant": variant,
        "mean_recall": sum(recalls) / len(runs),
        "by_seed": [round(recall, 2) for recall in recalls],
    }
    row |= {name: mean("metrics", name) for name in _METRICS}
    if "pointing" in runs[0]:
        row |= {f"pointing_{name}": mean("pointing", name) for name in runs[0]["pointing"]}
        row["pointing_hit_by_seed"] = [round(run["pointing"]["hit"], 4) for run in runs]
    if "leak" in runs[0]:
        row["leak_free"] = all(run["leak"]["passes"] for run in runs)
    row["seconds"] = mean("seconds", "train")
    return row


def check_targets(
    variants: list[dict[str, Any]], comparisons: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the targets of the study with their values, without those of missing variants."""
    by_pair = {(row["variant"], row["against"]): row for row in comparisons}
    targets = []

    def add(name: str, value: float | bool, required: str, reached: bool) -> None:
        targets.append({"target": name, "found": value, "required": required, "reached": reached})

    if row := by_pair.get(("open", "ratio_1.0")):
        add("open: ratio 0.5 not worse than keeping all patches (points, lower end)", row["low"],
            f"> {_WORSE}", row["low"] > _WORSE)  # fmt: skip
    if row := by_pair.get(("open", "global")):
        add("open: ratio 0.5 above global cosine (points, lower end)", row["low"], "> 0",
            row["low"] > 0)  # fmt: skip
    for row in (row for row in variants if row["variant"] in _SELECTING):
        times = row["pointing_hit"] / max(row["pointing_chance"], 1e-9)
        add(f"{row['variant']}: best-scored patch on a mentioned object (times chance)", times,
            f">= {_TIMES_CHANCE}", times >= _TIMES_CHANCE)  # fmt: skip
    dense = [row["leak_free"] for row in variants if "leak_free" in row]
    if dense:
        add("leak test passes", all(dense), "true", all(dense))
    return targets
