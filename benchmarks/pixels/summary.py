"""Tables of the study, differences with intervals, and which targets are reached."""

from collections.abc import Callable
from typing import Any

from benchmarks.pixels.measure import PHRASES
from benchmarks.pixels.variants import BINDING_TARGET, CONTROLS, FOLLOW_UPS, StudyConfig
from eligo.report.intervals import paired_bootstrap
from eligo.report.provenance import made_on

Runs = dict[int, dict[str, Any]]
Find = Callable[..., float | None]
_POINTS = 100.0
_CEILING = 1 / 3  # of the IoU of twins without words
_OF_MERGED, _BOUND, _BOUND_32 = 0.95, 0.95, 0.90
_STEM_GAIN, _LOST = 0.3, 0.05
_MISSING_COST = 2.0  # points
CONTROL = 3.0
"""Largest difference of a control from no words in points, at the farther end of the interval."""


def summarise(config: StudyConfig, results: dict[str, Runs]) -> dict[str, Any]:
    """Return the tables of each part, differences and targets."""
    tables = {
        "twins": [twins_row(n, r) for n, r in results.items() if n.startswith("twins")],
        "noisy tags": _noise_rows(results),
        "binding": [_binding_row(n, r) for n, r in results.items() if n.startswith("binding")],
        "depth": [_depth_row(n, r) for n, r in results.items() if n.startswith("depth")],
    }
    comparisons = _comparisons(config, results)
    runs = [run for by_seed in results.values() for run in by_seed.values()]
    return {
        "made_on": made_on(runs),
        **{name: rows for name, rows in tables.items() if rows},
        "differences": comparisons,
        "targets": _targets(config, results, comparisons),
        "seconds": sum(sum(run["seconds"].values()) for run in runs),
    }


def _mean(runs: Runs, read: Callable[[dict[str, Any]], float]) -> float:
    return sum(read(run["measured"]) for run in runs.values()) / len(runs)


def _common(name: str, runs: Runs) -> dict[str, Any]:
    first = next(iter(runs.values()))
    return {"variant": name, "seeds": len(runs), "parameters": first["parameters"]}


def twins_row(name: str, runs: Runs) -> dict[str, Any]:
    """Return means over the seeds: IoU of twins, of merged twins, of other classes."""
    row = _common(name, runs)
    for key in ("twin_iou", "merged_iou", "other_iou"):
        row[key] = _mean(runs, lambda measured, key=key: measured[key])
    row["of_merged"] = row["twin_iou"] / max(row["merged_iou"], 1e-9)
    row["by_seed"] = [round(run["measured"]["twin_iou"], 4) for run in runs.values()]
    return row


def _noise_rows(results: dict[str, Runs]) -> list[dict[str, Any]]:
    rows = []
    for name in ("twins_tags", "twins_no_dropout"):
        runs = results.get(name)
        if not runs:
            continue
        kinds = [kind["tags"] for kind in next(iter(runs.values()))["measured"]["noise"]]
        for place, kind in enumerate(kinds):
            row: dict[str, Any] = {"variant": name, "tags": kind}
            for key in ("twin_iou", "other_iou"):
                row[key] = _mean(runs, lambda m, i=place, key=key: m["noise"][i][key])
            rows.append(row)
    return rows


def _binding_row(name: str, runs: Runs) -> dict[str, Any]:
    row = _common(name, runs)
    for count in PHRASES:
        row[f"T {count}"] = _mean(
            runs, lambda measured, count=count: measured["accuracy"][str(count)]
        )
    row["entropy"] = next(iter(runs.values())).get("attention_entropy")
    row["by_seed"] = [
        round(run["measured"]["accuracy"][str(PHRASES[-1])], 4) for run in runs.values()
    ]
    return row


def _depth_row(name: str, runs: Runs) -> dict[str, Any]:
    row = _common(name, runs)
    for depth in ("own", "zeroed", "shuffled"):
        row[depth] = _mean(runs, lambda measured, depth=depth: measured[depth]["iou"])
    row["by_seed"] = [round(run["measured"]["own"]["iou"], 4) for run in runs.values()]
    return row


def _comparisons(config: StudyConfig, results: dict[str, Runs]) -> list[dict[str, Any]]:
    pairs = [
        (f"{part}_{control}", f"{part}_no_words")
        for part in ("twins", "binding")
        for control in CONTROLS
    ]
    pairs += [("twins_tags", "twins_no_words"), (BINDING_TARGET, "binding_no_words")]
    pairs += [("depth_stem", "depth_rgb_only")]
    pairs += [(name, "twins_no_words") for name in FOLLOW_UPS]
    rows = []
    for variant, baseline in pairs:
        first, second = results.get(variant, {}), results.get(baseline, {})
        if first.keys() & second.keys():
            interval = difference(first, second, config.resamples)
            rows.append({"variant": variant, "against": baseline, **interval})
    return rows


def difference(first: Runs, second: Runs, resamples: int) -> dict[str, float]:
    """Return the paired difference in points on the same scenes, over the common seeds."""
    differences = [
        [
            _POINTS * (a - b)
            for a, b in zip(_per_scene(first[seed]), _per_scene(second[seed]), strict=True)
        ]
        for seed in first
        if seed in second
    ]
    mean, low, high = paired_bootstrap(differences, resamples=resamples)
    return {"points": mean, "low": low, "high": high}


def _per_scene(run: dict[str, Any]) -> list[float]:
    measured = run["measured"]
    return measured["per_scene"] if "per_scene" in measured else measured["own"]["per_scene"]


def _targets(
    config: StudyConfig, results: dict[str, Runs], comparisons: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every target of the parts: reached or not, with its number, or not run."""
    rows: list[dict[str, Any]] = []

    def target(name: str, limit: str, value: float, find: Find, *variants: str) -> None:
        runs = [results.get(variant, {}) for variant in variants]
        measured = find(*runs) if all(runs) else None
        status = "not run"
        if measured is not None:
            reached = measured <= value if limit.startswith("<=") else measured >= value
            status = "reached" if reached else "not reached"
        seeds = min(len(by_seed) for by_seed in runs)
        rows.append(
            {"target": name, "found": measured, "limit": limit, "seeds": seeds, "status": status}
        )

    if "twins" in config.parts:
        name = "P: IoU of twins without words"
        target(name, "<= 1/3", _CEILING, lambda r: twins_row("", r)["twin_iou"], "twins_no_words")
        name = "P: with tags, share of the merged IoU"
        target(name, ">= 0.95", _OF_MERGED, lambda r: twins_row("", r)["of_merged"], "twins_tags")
        name = "N: cost of missing text for other classes (points)"
        target(name, "<= 2", _MISSING_COST, _cost_of_missing, "twins_tags")
    if "binding" in config.parts:
        name = "B: gated cosine 14.285714, to T = 16"
        target(name, ">= 0.95", _BOUND, lambda r: _bound(r, *PHRASES[:-1]), BINDING_TARGET)
        name = "B: gated cosine 14.285714, T = 32"
        target(name, ">= 0.90", _BOUND_32, lambda r: _bound(r, PHRASES[-1]), BINDING_TARGET)
    if "depth" in config.parts:
        pair = ("depth_stem", "depth_rgb_only")
        target("G: stem over RGB only (IoU)", ">= 0.3", _STEM_GAIN, _gain("own"), *pair)
        name = "G: the same with another scene's depth"
        target(name, "<= 0.05", _LOST, _gain("shuffled"), *pair)
    farthest = {row["variant"]: max(abs(row["low"]), abs(row["high"])) for row in comparisons}
    for part in ("twins", "binding"):
        for control in CONTROLS if part in config.parts else ():
            variant = f"{part}_{control}"
            name = f"C: {variant} against no words (points, farther end)"
            find = lambda *_, variant=variant: farthest.get(variant)  # noqa: E731
            target(name, "<= 3", CONTROL, find, variant, f"{part}_no_words")
    return rows


def _cost_of_missing(runs: Runs) -> float:
    kinds = [kind["tags"] for kind in next(iter(runs.values()))["measured"]["noise"]]
    gone = kinds.index("missing")
    return _POINTS * _mean(
        runs, lambda m: m["noise"][0]["other_iou"] - m["noise"][gone]["other_iou"]
    )


def _bound(runs: Runs, *counts: int) -> float:
    row = _binding_row("", runs)
    return min(row[f"T {count}"] for count in counts)


def _gain(depth: str) -> Find:
    """IoU of the stem with this depth over that of RGB alone."""
    return lambda stem, rgb: _depth_row("", stem)[depth] - _depth_row("", rgb)["own"]
