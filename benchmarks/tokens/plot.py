"""The exam in one picture: points lost by every method, at both costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tokens.config import TWO_STAGE
from eligo.report.dots import Row, save_dots
from eligo.tokens.inference.answers import BLIND, WHOLE

_OURS = "two stages"
_Lost = dict[str, dict[str, tuple[float, float, float]]]
_TICKS = (-0.2, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0)


def plot_exam(verdict: Mapping[str, Any], path: Path) -> Path:
    """`verdict`: what `judge` found, or the exam's whole JSON document."""
    methods: _Lost = {}
    others: _Lost = {}
    for row in verdict["arms"]:
        name, value = row["arm"], (row["drop"], row["drop_low"], row["drop_high"])
        if name in (WHOLE, BLIND):
            continue
        method, _, point = name.partition("@")
        if point and point != "half":
            methods.setdefault(method, {})[f"{point} %"] = value
        elif name == TWO_STAGE:
            methods.setdefault(_OURS, {})["default plan"] = value
        elif name.startswith(f"{TWO_STAGE}_") and "," not in name:
            methods.setdefault(_OURS, {})[f"{name.rpartition('_')[2]} %"] = value
        elif not point:
            base, _, how = name.partition(", ")
            label, _, point = base.rpartition("_")
            if point.isdigit():
                label = how or label.replace("_", " ")
                others.setdefault(label, {})[f"{point} %"] = value
    return save_dots(
        {"methods": _ranked(methods), "two stages otherwise": _ranked(others)},
        path,
        x_label="points of accuracy lost against all tokens (95 % intervals)",
        ticks=_TICKS,
        linear_to=1.0,
        marked=0.0,
    )


def _ranked(lost: _Lost) -> list[Row]:
    """By the most that is lost at any cost."""
    ordered = sorted(lost.items(), key=lambda item: max(item[1].values()))
    return [Row(name, its, name == _OURS) for name, its in ordered]
