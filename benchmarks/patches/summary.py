"""What the runs of an exam say together: arms, differences with intervals, bars met or missed."""

from collections.abc import Callable
from typing import Any

from benchmarks.patches.config import ExamConfig
from eligo.report.intervals import paired_bootstrap
from eligo.report.provenance import made_on

_WORSE = -1.0  # points of mean recall that slimming may cost
_TIMES_CHANCE = 3.0
_HALF = ("open", "open_dense", "paper")
"""Arms that select at ratio 0.5: each must point at what the text mentions."""


def summarise(config: ExamConfig, results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """Arms, comparisons with intervals, and whether each must is met."""
    arms = [_arm_row(arm, list(found.values())) for arm, found in results.items()]

    def compare(one: str, other: str) -> dict[str, Any]:
        differences = [
            [a - b for a, b in zip(left["per_scene"], right["per_scene"], strict=True)]
            for left, right in zip(results[one].values(), results[other].values(), strict=True)
        ]
        mean, low, high = paired_bootstrap(differences, resamples=config.resamples)
        return {"arm": one, "against": other, "difference": mean, "low": low, "high": high}

    pairs = [
        ("open", "ratio_1.0"), ("ratio_0.25", "ratio_1.0"), ("ratio_0.75", "ratio_1.0"),
        ("open", "global"), ("open_dense", "global"), ("paper", "global"), ("filip", "global"),
        ("open", "filip"), ("open_dense", "open"), ("paper", "open"),
    ]  # fmt: skip
    comparisons = [compare(*pair) for pair in pairs if set(pair) <= results.keys()]
    return {
        "made_on": made_on(run for runs in results.values() for run in runs.values()),
        "arms": arms,
        "comparisons": comparisons,
        "musts": judge(arms, comparisons),
    }


def _arm_row(arm: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(read: Callable[[dict[str, Any]], float]) -> float:
        return sum(map(read, runs)) / len(runs)

    row: dict[str, Any] = {
        "arm": arm,
        "mean_recall": mean(lambda run: run["metrics"]["rsum"] / 6),
        "by_seed": [round(run["metrics"]["rsum"] / 6, 2) for run in runs],
    }
    for name in ("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "t2i_mean_recall10"):
        row[name] = mean(lambda run, name=name: run["metrics"][name])
    if "pointing" in runs[0]:
        for name in runs[0]["pointing"]:
            row[f"pointing_{name}"] = mean(lambda run, name=name: run["pointing"][name])
        row["pointing_hit_by_seed"] = [round(run["pointing"]["hit"], 4) for run in runs]
    if "leak" in runs[0]:
        row["leak_free"] = all(run["leak"]["passes"] for run in runs)
    row["seconds"] = mean(lambda run: run["seconds"]["train"])
    return row


def judge(arms: list[dict[str, Any]], comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bars of the exam, each with what was found; those whose arms were not run are absent."""
    found = {(row["arm"], row["against"]): row for row in comparisons}
    rows = {row["arm"]: row for row in arms}
    musts = []

    def must(name: str, value: float | bool, bar: str, met: bool) -> None:
        musts.append({"must": name, "found": value, "bar": bar, "met": met})

    if row := found.get(("open", "ratio_1.0")):
        must("open: ratio 0.5 not worse than no slimming (points, lower end)", row["low"],
             f"> {_WORSE}", row["low"] > _WORSE)  # fmt: skip
    if row := found.get(("open", "global")):
        must("open: ratio 0.5 above global cosine (points, lower end)", row["low"], "> 0",
             row["low"] > 0)  # fmt: skip
    for arm in (arm for arm in _HALF if arm in rows):
        times = rows[arm]["pointing_hit"] / max(rows[arm]["pointing_chance"], 1e-9)
        must(f"{arm}: best-scored patch on a mentioned object (times chance)", times,
             f">= {_TIMES_CHANCE}", times >= _TIMES_CHANCE)  # fmt: skip
    dense = [row["leak_free"] for row in arms if "leak_free" in row]
    if dense:
        must("leak test passes", all(dense), "true", all(dense))
    return musts
