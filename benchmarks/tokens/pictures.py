"""`python -m benchmarks.tokens.pictures`: plots for the pages of study and speed.

Drawn from the committed results; the study also draws its own plot with `plot_study`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tokens.config import TWO_STAGE
from benchmarks.tokens.photos_summary import MEAN, is_trained
from eligo.report.dots import Row, save_dots
from eligo.report.plots import Panel, Point, save_panels
from eligo.tokens.inference.evaluate import BLIND, WHOLE

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE.parents[1] / "docs" / "pictures"
OURS = "two stages"
LABELS = {"two-stage": OURS, "fastv": "FastV"}
TRAINED = {TWO_STAGE: OURS, f"{TWO_STAGE}_blind": f"{OURS}, question-blind"}
"""Names of plans."""
OTHERS = {"mmr": f"{OURS}, mmr", "vision_selector": "VisionSelector's form"}
"""Names of trainings in the study that are not ablations."""
TIMES = {"ttft_ms": "first token", "prefill_ms": "prefill", "decode_ms": "decoding, per token"}
_TICKS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0)
_CURVES = ("tome", "divprune", "visionzip", "pool", "random")
"""Training-free methods in the plot by family; all of them would hide each other."""
_Lost = dict[str, dict[str, tuple[float, float, float]]]


def main() -> None:
    """Draw all plots; those of photos, if the study on photos was run."""
    plot_study(read("study.json"), PICTURES / "tokens_study.png")
    if (RESULTS / "photos.json").is_file():
        photos = read("photos.json")
        plot_photos(photos, PICTURES / "tokens_photos.png")
        plot_families(photos, PICTURES / "tokens_photos_families.png")
    bench, tiny = read("bench.json"), read("bench_tiny.json")
    groups = {
        f"LLaVA-1.5-7B shapes, batch {batch}": speeds(bench, batch)
        for batch in sorted({row["batch"] for row in bench["rows"]}, reverse=True)
    }
    whole, pruned = (row["answer_ms"]["p50"] for row in tiny["rows"])
    groups["tiny LLaVA, 2 CPU threads"] = [dots("whole answer", {OURS: whole / pruned})]
    save_dots(
        groups, PICTURES / "tokens_speed.png", x_label="times as fast as without pruning",
        ticks=[0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5], marked=1.0,
    )  # fmt: skip


def plot_study(summary: Mapping[str, Any], path: Path) -> Path:
    """Plot the accuracy that every method loses; `summary`: from `summarise`, or study.json."""
    methods: _Lost = {}
    others: _Lost = {}
    for row in summary["variants"]:
        name, value = str(row["variant"]), (row["drop"], row["drop_low"], row["drop_high"])
        if name in (WHOLE, BLIND):
            continue
        method, _, point = name.partition("@")
        if point and point != "half":
            methods.setdefault(method, {})[f"{point} %"] = value
        elif name == TWO_STAGE:
            methods.setdefault(OURS, {})["default plan"] = value
        elif name.startswith(f"{TWO_STAGE}_") and "," not in name:
            methods.setdefault(OURS, {})[f"{name.rpartition('_')[2]} %"] = value
        elif not point:
            base, _, how = name.partition(", ")
            label, _, point = base.rpartition("_")
            if point.isdigit():
                label = how or OTHERS.get(label, label.replace("_", " "))
                others.setdefault(label, {})[f"{point} %"] = value
    return _save_lost({"methods": methods, "ablations and other trained plans": others}, path)


def plot_photos(summary: Mapping[str, Any], path: Path) -> Path:
    """Plot the accuracy that every method loses on photos; `summary`: photos.json."""
    learned: _Lost = {}
    others: _Lost = {}
    for row in summary["variants"]:
        method, _, point = str(row["variant"]).partition("@")
        if point and "," not in method:
            group = learned if is_trained(method) else others
            name = TRAINED.get(method, method.replace("_", " "))
            group.setdefault(name, {})[f"{point} tokens"] = (row["lost"], row["low"], row["high"])
    return _save_lost({"trained": learned, "training-free": others}, path)


def plot_families(summary: Mapping[str, Any], path: Path) -> Path:
    """Plot accuracy over the FLOPs saved, for every family of questions and in the mean."""
    rows = {str(row["variant"]): row for row in summary["variants"]}
    panels = []
    for family in (MEAN, *(name for name in rows[WHOLE]["accuracy"] if name != MEAN)):
        curves: dict[str, list[Point]] = {}
        for name, row in rows.items():
            method, _, point = name.partition("@")
            if not point or method not in (*TRAINED, *_CURVES):
                continue
            value = row["accuracy"][family]
            label = TRAINED.get(method, method)
            saved = 100 * row["flops_reduction_with_selector"]
            curves.setdefault(label, []).append(Point(saved, value, value, value))
        levels = {"all tokens": rows[WHOLE]["accuracy"][family]}
        panels.append(Panel(family, curves, levels))
    return save_panels(
        panels, path, x_label="FLOPs of the language model saved (%)", y_label="right answers (%)"
    )


def _save_lost(groups: Mapping[str, _Lost], path: Path) -> Path:
    values = (value for lost in groups.values() for row in lost.values() for value in row.values())
    lowest = min(low for _, low, _ in values)
    first = max((at for at, tick in enumerate(_TICKS) if tick <= lowest), default=0)
    return save_dots(
        {name: _ranked(lost) for name, lost in groups.items()},
        path,
        x_label="points of accuracy lost against all tokens (95 % intervals)",
        ticks=_TICKS[first:],
        linear_to=1.0,
        marked=0.0,
    )


def _ranked(lost: _Lost) -> list[Row]:
    """Sort by the largest loss."""
    ordered = sorted(lost.items(), key=lambda item: max(item[1].values()))
    return [Row(name, points, name == OURS) for name, points in ordered]


def speeds(bench: dict[str, Any], batch: int) -> list[Row]:
    """Return the speed-ups of all times at one batch size."""
    rows = {row["variant"]: row for row in bench["rows"] if row["batch"] == batch}
    speedups = []
    for time, title in TIMES.items():
        ratios = {
            label: rows["unpruned"][time]["p50"] / rows[name][time]["p50"]
            for name, label in LABELS.items()
            if time in rows[name]
        }
        if time == "ttft_ms":
            saved = bench["cost"]["flops_reduction_llm"]
            full, llm = rows["unpruned"][time]["p50"], rows["unpruned"]["llm_ms"]["p50"]
            ratios["what FLOPs predict"] = full / (full - saved * llm)
        speedups.append(dots(title, ratios))
    return speedups


def dots(name: str, ratios: dict[str, float]) -> Row:
    """Return a row without intervals."""
    return Row(name, {series: (ratio, ratio, ratio) for series, ratio in ratios.items()})


def read(name: str) -> dict[str, Any]:
    """Read a committed result."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
