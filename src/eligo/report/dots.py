"""Dot plots with intervals, one row per name.

Like `plots`, without pyplot; needs the extra `plots`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eligo.io.files import writing
from eligo.report.plots import new_figure

_COLORS = ("#0b5fa5", "#d1495b", "#5b8c5a", "#8a6fb0")
_MARKERS = "osD^"
_ROW, _WIDTH = 0.23, 8.0  # inches


@dataclass(frozen=True)
class Row:
    """A name and its values."""

    name: str
    values: Mapping[str, tuple[float, float, float]]
    """Value, low and high, by series."""
    is_ours: bool = False
    """Set in bold."""


def save_dots(
    groups: Mapping[str, Sequence[Row]],
    path: str | Path,
    *,
    x_label: str,
    ticks: Sequence[float],
    linear_to: float | None = None,
    marked: float | None = None,
) -> Path:
    """Draw groups of rows, top to bottom.

    The axis is logarithmic beyond `linear_to`; `marked` is a value drawn as a line.
    """
    count = sum(len(rows) + 1 for rows in groups.values())
    figure = new_figure(_WIDTH, count * _ROW + 1)
    axes = figure.subplots()
    if linear_to is not None:
        axes.set_xscale("symlog", linthresh=linear_to, linscale=1)
    axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    series = list(
        dict.fromkeys(name for rows in groups.values() for row in rows for name in row.values)
    )
    place, places, names = 0, [], []
    for title, rows in groups.items():
        place -= 1
        axes.text(0, place, title, transform=axes.get_yaxis_transform(), fontsize="small",
                  color="0.35", va="center", ha="left", backgroundcolor="white")  # fmt: skip
        for row in rows:
            place -= 1
            places.append(place)
            names.append(row)
            for number, name in enumerate(series):
                if name in row.values:
                    value, low, high = row.values[name]
                    axes.errorbar(
                        value, place, xerr=[[max(0, value - low)], [max(0, high - value)]],
                        color=_COLORS[number % len(_COLORS)],
                        marker=_MARKERS[number % len(_MARKERS)],
                        markersize=7 if row.is_ours else 4.5, elinewidth=1.2, capsize=0,
                        linestyle="", label=name,
                    )  # fmt: skip
    axes.set_yticks(places, [row.name for row in names], fontsize="small")
    for label, row in zip(axes.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if row.is_ours else "normal")
    axes.set_ylim(place - 0.7, -0.3)
    axes.set_xlim(ticks[0], ticks[-1])
    axes.set_xlabel(x_label, fontsize="small")
    axes.tick_params(axis="y", length=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if marked is not None:
        axes.axvline(marked, color="0.4", linestyle="--", linewidth=1)
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside upper right", ncols=4,
                  fontsize="small", frameon=False)  # fmt: skip
    with writing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return Path(path)
