"""What `eligo shots exam` found, in tables that 80 columns hold; exam.json has all of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from eligo.cli.console import compact_table

_DIGITS = {"accuracy": 1, "utility": 2, "regret": 2, "ndcg": 3, "mrr": 3}
_COMPARED = ("accuracy", "ndcg", "mrr")
_USUAL = 0.95


def exam_tables(found: Mapping[str, Any]) -> Iterable[Table]:
    """Rows and differences for every number of examples, then formulas."""
    for count, rows in found.get("tables", {}).items():
        yield _rows(count, rows)
        yield _differences(
            count, [told for told in found["comparisons"] if str(told["shots"]) == count]
        )
    if formulas := found.get("formulas"):
        yield _formulas(formulas)


def _rows(count: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    caption = "± the longer half of the 95 % interval"
    table = compact_table(f"{count} examples", caption, ["row"], list(_DIGITS))
    for row in rows:
        cells = (_spread(name, *row[name]) if name in row else "-" for name in _DIGITS)
        table.add_row(row["row"], *cells)
    return table


def _differences(count: str, comparisons: Sequence[Mapping[str, Any]]) -> Table:
    caption = f"± likewise, {_USUAL:.0%} unless said; * the interval does not contain 0"
    table = compact_table(
        f"{count} examples: by how much the first is ahead", caption, ["pair"], list(_COMPARED)
    )
    pairs: dict[str, dict[str, str]] = {}
    for told in comparisons:
        level = "" if told["level"] == _USUAL else f", {told['level']:.1%}"
        cells = pairs.setdefault(f"{told['row']} - {told['against']}{level}", {})
        values = (told["difference"], told["low"], told["high"])
        star = " " if told["better"] == "neither" else "*"
        cells[told["column"]] = _spread(told["column"], *values, sign="+") + star
    for name, cells in pairs.items():
        table.add_row(name, *(cells.get(column, "-") for column in _COMPARED))
    return table


def _formulas(formulas: Sequence[Mapping[str, Any]]) -> Table:
    kinds = list(dict.fromkeys(told["formula"] for told in formulas))
    caption = "regret, as a share of that of random lists"
    table = compact_table("formulas", caption, ["row"], kinds)
    for row in dict.fromkeys(told["row"] for told in formulas):
        shares = {told["formula"]: told["of chance"] for told in formulas if told["row"] == row}
        table.add_row(row, *(f"{shares[kind]:.2f}" for kind in kinds))
    return table


def _spread(column: str, mean: float, low: float, high: float, sign: str = "") -> str:
    digits = _DIGITS[column]
    return f"{mean:{sign}.{digits}f} ±{max(mean - low, high - mean):.{digits}f}"
