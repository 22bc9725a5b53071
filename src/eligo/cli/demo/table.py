"""The demo's table: one line for each method, grouped by part."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eligo.cli.demo.part import MethodResult, Part

_COLUMNS = {"": 21, "score": 5, "95 %": 10, "kept": 15, "FLOPs": 5, "time": 7, "saved": 5}
_CHART = 25  # characters from 0 to 100 %; shown on wide consoles
_WIDE = sum(_COLUMNS.values()) + _CHART + 2 * len(_COLUMNS)  # two blanks between columns
_OURS = "bold green"


def table(parts: Sequence[Part], console: Console) -> RenderableType:
    """Return the table of all parts; a wide console also gets a chart of scores and intervals."""
    chart = console.width >= _WIDE and not console.options.ascii_only
    blocks: list[RenderableType] = [_grid((), chart, header=True)]
    for part in parts:
        blocks.append(Text.assemble((part.name, "bold"), "  ", part.question))
        if part.rows:
            blocks.append(_grid(part.rows, chart))
        style = "dim" if part.rows else "yellow"
        blocks.append(Padding(Text(part.note, style), (0, 0, 1, 2)))
    return Group(*blocks)


def _grid(rows: Sequence[MethodResult], chart: bool, *, header: bool = False) -> Table:
    grid = Table(box=None, show_header=header, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, width in _COLUMNS.items():
        side = "left" if name in ("", "kept") else "right"
        grid.add_column(name, width=width, justify=side, no_wrap=True)
        if name == "95 %" and chart:
            grid.add_column("0" + "100 %".rjust(_CHART - 1), width=_CHART, no_wrap=True)
    for row in rows:
        cells = [f"  {row.method}", *_score(row)]
        if chart:
            cells.append(_line(row))
        flops = "" if row.flops is None else f"{100 * row.flops:.0f} %"
        times = _time(row), _saved(row, rows[0])
        grid.add_row(*cells, row.kept, flops, *times, style=_OURS if row.is_ours else "")
    return grid


def _score(row: MethodResult) -> tuple[str, str]:
    if row.score is None:
        return "-", ""
    return f"{100 * row.score:.1f}", f"{100 * row.low:.1f}-{100 * row.high:.1f}"


def _line(row: MethodResult) -> str:
    """Draw the interval as a line, with the score on it.

    >>> _line(MethodResult("all", 0.5, 0.25, 0.75))
    '      ├─────●─────┤      '
    """
    if row.score is None:
        return ""
    low, at, high = (round(share * (_CHART - 1)) for share in (row.low, row.score, row.high))
    cells = [" "] * low + ["─"] * (high - low + 1) + [" "] * (_CHART - 1 - high)
    cells[low], cells[high] = "├", "┤"
    cells[at] = "●"
    return "".join(cells)


def _time(row: MethodResult) -> str:
    if row.seconds is None:
        return ""
    milliseconds = 1000 * row.seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "< 1 ms"


def _saved(row: MethodResult, first: MethodResult) -> str:
    """Return the share of the first method's time that is saved, or nothing."""
    if row.seconds is None or first.seconds is None or row.seconds >= first.seconds:
        return ""
    return f"{100 * (1 - row.seconds / first.seconds):.0f} %"
