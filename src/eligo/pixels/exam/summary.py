"""The exam's tables, differences with intervals, and which musts are met."""

from collections.abc import Callable
from typing import Any

from eligo.pixels.exam.arms import BINDING_MUST, CONTROLS
from eligo.pixels.exam.config import ExamConfig
from eligo.pixels.exam.measure import PHRASES
from eligo.report.intervals import paired_bootstrap

Runs = dict[int, dict[str, Any]]
_POINTS = 100.0
_CEILING = 1 / 3  # of the IoU of twins without words
_OF_MERGED, _BOUND, _BOUND_32 = 0.95, 0.95, 0.90
_STEM_GAIN, _LOST = 0.3, 0.05
_MISSING_COST, _CONTROL = 2.0, 3.0  # points


def summarise(config: ExamConfig, results: dict[str, Runs]) -> dict[str, Any]:
    """Tables by part, comparisons, musts."""
    tables = {
        "twins": [_twins_row(n, r) for n, r in results.items() if n.startswith("twins")],
        "noisy tags": _noise_rows(results),
        "binding": [_binding_row(n, r) for n, r in results.items() if n.startswith("binding")],
        "depth": [_depth_row(n, r) for n, r in results.items() if n.startswith("depth")],
    }
    comparisons = _comparisons(config, results)
    return {
        **{name: rows for name, rows in tables.items() if rows},
        "differences": comparisons,
        "musts": _musts(results, comparisons),
        "seconds": sum(
            sum(run["seconds"].values()) for runs in results.values() for run in runs.values()
        ),
    }


def _mean(runs: Runs, read: Callable[[dict[str, Any]], float]) -> float:
    return sum(read(run["measured"]) for run in runs.values()) / len(runs)


def _common(name: str, runs: Runs) -> dict[str, Any]:
    first = next(iter(runs.values()))
    return {"arm": name, "seeds": len(runs), "parameters": first["parameters"]}


def _twins_row(name: str, runs: Runs) -> dict[str, Any]:
    row = _common(name, runs)
    for key in ("twin_iou", "merged_iou", "other_iou"):
        row[key] = _mean(runs, lambda found, key=key: found[key])
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
            rows.append(
                {
                    "arm": name,
                    "tags": kind,
                    "twin_iou": _mean(runs, lambda m, i=place: m["noise"][i]["twin_iou"]),
                    "other_iou": _mean(runs, lambda m, i=place: m["noise"][i]["other_iou"]),
                }
            )
    return rows


def _binding_row(name: str, runs: Runs) -> dict[str, Any]:
    row = _common(name, runs)
    for count in PHRASES:
        row[f"T {count}"] = _mean(runs, lambda found, count=count: found["accuracy"][str(count)])
    row["entropy"] = next(iter(runs.values())).get("attention_entropy")
    row["by_seed"] = [
        round(run["measured"]["accuracy"][str(PHRASES[-1])], 4) for run in runs.values()
    ]
    return row


def _depth_row(name: str, runs: Runs) -> dict[str, Any]:
    row = _common(name, runs)
    for depth in ("own", "zeroed", "shuffled"):
        row[depth] = _mean(runs, lambda found, depth=depth: found[depth]["iou"])
    row["by_seed"] = [round(run["measured"]["own"]["iou"], 4) for run in runs.values()]
    return row


def _comparisons(config: ExamConfig, results: dict[str, Runs]) -> list[dict[str, Any]]:
    pairs = [
        (f"{part}_{control}", f"{part}_no_words")
        for part in ("twins", "binding")
        for control in CONTROLS
    ]
    pairs += [("twins_tags", "twins_no_words"), (BINDING_MUST, "binding_no_words")]
    pairs += [("depth_stem", "depth_rgb_only")]
    rows = []
    for one, other in pairs:
        if not (results.get(one) and results.get(other)):
            continue
        seeds = [seed for seed in results[one] if seed in results[other]]
        if not seeds:
            continue
        differences = [
            [
                _POINTS * (a - b)
                for a, b in zip(
                    _per_scene(results[one][seed]), _per_scene(results[other][seed]), strict=True
                )
            ]
            for seed in seeds
        ]
        mean, low, high = paired_bootstrap(differences, resamples=config.resamples)
        rows.append({"arm": one, "against": other, "points": mean, "low": low, "high": high})
    return rows


def _per_scene(run: dict[str, Any]) -> list[float]:
    measured = run["measured"]
    return measured["per_scene"] if "per_scene" in measured else measured["own"]["per_scene"]


def _musts(results: dict[str, Runs], comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every must whose arms were run, met or missed, with its number."""
    rows: list[dict[str, Any]] = []

    def must(name: str, found: float, bar: str, met: bool) -> None:
        rows.append({"must": name, "found": found, "bar": bar, "met": "met" if met else "MISSED"})

    if runs := results.get("twins_no_words"):
        found = _mean(runs, lambda m: m["twin_iou"])
        must("P: IoU of twins without words", found, "<= 1/3", found <= _CEILING)
    if runs := results.get("twins_tags"):
        row = _twins_row("", runs)
        found = row["of_merged"]
        must("P: with tags, share of the merged IoU", found, ">= 0.95", found >= _OF_MERGED)
        noise = {kind["tags"]: place for place, kind in enumerate(_noise(runs))}
        whole = _mean(runs, lambda m: m["noise"][0]["other_iou"])
        gone = _mean(runs, lambda m: m["noise"][noise["missing"]]["other_iou"])
        cost = _POINTS * (whole - gone)
        must("N: missing text costs other classes (points)", cost, "<= 2", cost <= _MISSING_COST)
    if runs := results.get(BINDING_MUST):
        row = _binding_row("", runs)
        least = min(row[f"T {count}"] for count in PHRASES[:-1])
        last = row[f"T {PHRASES[-1]}"]
        must("B: gated cosine 14.285714, to T = 16", least, ">= 0.95", least >= _BOUND)
        must("B: gated cosine 14.285714, T = 32", last, ">= 0.90", last >= _BOUND_32)
    rgb, stem = results.get("depth_rgb_only"), results.get("depth_stem")
    if rgb and stem:
        base, row = _depth_row("", rgb)["own"], _depth_row("", stem)
        gain, left = row["own"] - base, row["shuffled"] - base
        must("G: stem over RGB only (IoU)", gain, ">= 0.3", gain >= _STEM_GAIN)
        must("G: what is left of it with another depth", left, "<= 0.05", left <= _LOST)
    for row in comparisons:
        if row["arm"].endswith(CONTROLS):
            widest = max(abs(row["low"]), abs(row["high"]))
            name = f"C: {row['arm']} against no words (points, farther end)"
            must(name, widest, "<= 3", widest <= _CONTROL)
    return rows


def _noise(runs: Runs) -> list[dict[str, Any]]:
    return next(iter(runs.values()))["measured"]["noise"]
