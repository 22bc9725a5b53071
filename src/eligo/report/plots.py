"""Curves with intervals as PNG files, such as accuracy over cost.

Drawn without pyplot, which keeps global state. Needs the extra `plots` (matplotlib); otherwise
raises `MissingExtraError`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from eligo.errors import MissingExtraError
from eligo.io.files import writing

_MARKERS = "osD^vP*X<>"
_MOST_ACROSS = 3  # panels
_ROWS_OF_LEGEND = 4
_PANEL = (4.2, 3.2)  # inches


@dataclass(frozen=True)
class Point:
    """A measurement with its interval."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    """Named curves over one pair of axes."""

    title: str
    curves: Mapping[str, Sequence[Point]]
    levels: Mapping[str, float] = field(default_factory=dict)
    """Horizontal dashed reference lines."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_panels(panels: Sequence[Panel], path: str | Path, *, x_label: str, y_label: str) -> Path:
    """Draw the panels side by side, on shared axes and with one legend."""
    down = math.ceil(len(panels) / _MOST_ACROSS)
    across = math.ceil(len(panels) / down)
    figure = new_figure(max(2, across) * _PANEL[0], down * _PANEL[1] + 1)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    styles = _styles(panels)
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel, styles)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    figure.supxlabel(x_label, fontsize="medium")
    figure.supylabel(y_label, fontsize="medium")
    shown: dict[str, Any] = {}
    for place in axes[: len(panels)]:
        handles, names = place.get_legend_handles_labels()
        shown |= dict(zip(names, handles, strict=True))
    columns = max(3, math.ceil(len(shown) / _ROWS_OF_LEGEND))
    figure.legend(
        shown.values(), shown.keys(), loc="outside upper center", ncols=columns, fontsize="small",
        frameon=False,
    )  # fmt: skip
    with writing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    return Path(path)


def _styles(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Return styles by name, the same in all panels."""
    names = dict.fromkeys(name for panel in panels for name in (*panel.curves, *panel.levels))
    markers = cycle(_MARKERS)
    return {
        name: {"color": f"C{number % 10}", "marker": next(markers)}
        for number, name in enumerate(names)
    }


def _draw(axes: Any, panel: Panel, styles: Mapping[str, Mapping[str, Any]]) -> None:
    for name, points in panel.curves.items():
        ordered = sorted(points, key=lambda point: point.x)
        y = [point.y for point in ordered]
        below = [max(0.0, point.y - point.low) for point in ordered]
        above = [max(0.0, point.high - point.y) for point in ordered]
        axes.errorbar(
            [point.x for point in ordered], y, yerr=[below, above], label=name, markersize=5,
            linewidth=1.3, elinewidth=0.7, capsize=2, **styles[name],
        )  # fmt: skip
    for name, level in panel.levels.items():
        axes.axhline(level, label=name, color=styles[name]["color"], linestyle="--", linewidth=1)
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
