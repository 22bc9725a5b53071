"""Results of the study: tables, differences with intervals, and targets (reached or not).

Means are over queries and seeds. Intervals come from a paired bootstrap over lexicons and seeds:
queries of a lexicon share scenes, words and examples, so they are drawn together. A target is
decided by the interval, never by the mean alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.shots.expected import expected_table
from benchmarks.shots.measure import COLUMNS, HEADROOM, NEAR_CHANCE, ORACLE
from eligo.cli.console import compact_table
from eligo.report.intervals import bootstrap_means

Runs = list[Mapping[str, Mapping[str, list[float | None]]]]
"""For each seed: values per query, by number of shots and column."""
Interval = tuple[float, float, float]
_LOSS = -1.0  # points of accuracy that V3 may lose
_LEVEL = 0.95
_BOTH = 0.975  # level of two comparisons of which one has to hold
_PAIRS = (
    ("v1", "knn", _LEVEL), ("v2_gru", "v1", _BOTH), ("v0", "v1", _BOTH), ("v3", "v1", _LEVEL),
    ("v2", "v1", _LEVEL), ("mmr", "knn", _LEVEL), ("dpp", "knn", _LEVEL),
    ("v2_gru", "dpp", _LEVEL), ("v2_gru", "mmr", _LEVEL), ("v1_gate", "v2_gru", _LEVEL),
    ("v1_gate", "mmr", _LEVEL), ("v1_gate", "dpp", _LEVEL),
    ("beam_oracle", "static_oracle", _LEVEL),
)  # fmt: skip
_DIGITS = {"accuracy": 1, "utility": 2, "regret": 2, "ndcg": 3, "mrr": 3}
_STEP_DIGITS = {"top1": 1, "top3": 1, "top5": 1, "logits_std": 2}
_PERCENT = {"accuracy", "top1", "top3", "top5"}
_COMPARED = ("accuracy", "ndcg", "mrr")


class Results:
    """Values of every row, with means, differences and intervals."""

    def __init__(
        self, rows: Mapping[str, Runs], lexicons: Sequence[str | None], resamples: int
    ) -> None:
        self.rows, self.lexicons, self.resamples = rows, lexicons, resamples

    def values(self, row: str, shots: str, column: str) -> list[list[float]] | None:
        """Values by seed and query; None for a row without this column.

        Queries without a value (a constant teacher has no ranking) are left out in all rows.
        """
        columns = [run[shots].get(column) for run in self.rows[row]]
        if any(values is None for values in columns):
            return None
        scale = 100.0 if column in _PERCENT else 1.0
        return [[scale * v for v in values or [] if v is not None] for values in columns]

    def means(self, shots: str) -> list[dict[str, Any]]:
        """The table: each row with the intervals of its columns."""
        table = []
        for row, runs in self.rows.items():
            entry: dict[str, Any] = {"row": row, "seeds": len(runs)}
            ranked = runs[0][shots].get("ndcg")
            if ranked is not None:
                entry["without ndcg"] = sum(value is None for value in ranked)
            for column in COLUMNS:
                values = self.values(row, shots, column)
                if values is not None and values[0]:
                    entry[column] = self._interval(values, row, shots, column)
            table.append(entry)
        return table

    def _interval(
        self, values: list[list[float]], row: str, shots: str, column: str, level: float = _LEVEL
    ) -> Interval:
        pairs = zip(self.lexicons, self.rows[row][0][shots][column], strict=True)
        groups = [lexicon for lexicon, value in pairs if value is not None]
        return bootstrap_means([values], resamples=self.resamples, level=level, groups=groups)[0]

    def difference(
        self, row: str, other: str, shots: str, column: str, level: float
    ) -> Interval | None:
        """Difference of two rows; a row of one run is compared with all runs of the other."""
        first, second = (self.values(name, shots, column) for name in (row, other))
        if not first or not second or not first[0]:
            return None
        count = max(len(first), len(second))
        pairs = [(first[n % len(first)], second[n % len(second)]) for n in range(count)]
        differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
        return self._interval(differences, row, shots, column, level)


def summarise(
    rows: Mapping[str, Runs],
    health: Mapping[str, Any],
    shots: Sequence[int],
    lexicons: Sequence[str | None],
    resamples: int,
) -> dict[str, Any]:
    """Return tables, comparisons and targets; `lexicons` are those of the queries."""
    results = Results(rows, lexicons, resamples)
    # Modified versions of V3 are compared like V3 itself.
    pairs = [*_PAIRS, *((row, "v1", _LEVEL) for row in rows if row.startswith("v3_"))]
    comparisons = []
    for count in shots:
        for row, other, level in pairs:
            for column in ("accuracy", "utility", "ndcg", "mrr"):
                if row not in rows or other not in rows:
                    continue
                interval = results.difference(row, other, str(count), column, level)
                if interval is not None:
                    mean, low, high = interval
                    better = row if low > 0 else other if high < 0 else "neither"
                    comparisons.append(
                        {
                            "row": row, "against": other, "shots": count, "column": column,
                            "level": level, "difference": mean, "low": low, "high": high,
                            "better": better,
                        }
                    )  # fmt: skip
    return {
        "tables": {str(count): results.means(str(count)) for count in shots},
        "comparisons": comparisons,
        "targets": [*_health_targets(health), *_selector_targets(comparisons, shots[0])],
    }


def target(name: str, measured: float, limit: str, reached: bool) -> dict[str, Any]:
    """Return a row: a target, the measured value, and whether it is reached."""
    outcome = "reached" if reached else "not reached"
    return {"name": name, "found": measured, "target": limit, "outcome": outcome}


def _health_targets(health: Mapping[str, Any]) -> list[dict[str, Any]]:
    over, ahead = health["zero_shot"] - health["chance"], health["beam"] - health["static"]
    return [
        target("health: accuracy with the best pair", health["beam"], f">= {ORACLE}",
               health["oracle_is_good"]),
        target("health: zero-shot above chance", over, f"<= {NEAR_CHANCE}",
               health["zero_shot_is_chance"]),
        target("health: best pair above best singles", ahead, f">= {HEADROOM}",
               health["pairs_beat_singles"]),
    ]  # fmt: skip


def _selector_targets(comparisons: list[dict[str, Any]], shots: int) -> list[dict[str, Any]]:
    """Targets of the variants that were run, by the lower end of the interval."""
    low = {
        (row["row"], row["against"], row["column"]): row["low"]
        for row in comparisons
        if row["shots"] == shots
    }
    states = [low[key] for name in ("v2_gru", "v0") if (key := (name, "v1", "accuracy")) in low]
    wanted: list[tuple[str, float | None, float]] = [
        ("v1 above knn (points, lower end)", low.get(("v1", "knn", "accuracy")), 0),
        ("v2_gru or v0 above v1 (points, lower end of 97.5 %, the better row)",
         max(states, default=None), 0),
        ("v3 not below v1 (points, lower end)", low.get(("v3", "v1", "accuracy")), _LOSS),
        ("v3 above v1 in ndcg (lower end)", low.get(("v3", "v1", "ndcg")), 0),
        ("v3 above v1 in mrr (lower end)", low.get(("v3", "v1", "mrr")), 0),
    ]  # fmt: skip
    return [
        target(name, value, f"> {limit}", value > limit)
        for name, value, limit in wanted
        if value is not None
    ]


def study_tables(result: Mapping[str, Any]) -> Iterable[Table]:
    """Yield tables of 80 columns: rows and differences per number of shots, then formulas."""
    for count, rows in result.get("tables", {}).items():
        yield _means(f"{count} examples", rows, _DIGITS)
        if stepwise := [row for row in rows if "top1" in row]:
            yield _means(f"{count} examples: steps of the best list, %", stepwise, _STEP_DIGITS)
        yield _differences(count, [c for c in result["comparisons"] if str(c["shots"]) == count])
    if figures := result.get("expected figures"):
        yield expected_table(figures)
    if formulas := result.get("formulas"):
        kinds = list(dict.fromkeys(entry["formula"] for entry in formulas))
        caption = "regret, as a share of that of random lists"
        table = compact_table("formulas", caption, ["row"], kinds)
        for row in dict.fromkeys(entry["row"] for entry in formulas):
            shares = [entry["of chance"] for entry in formulas if entry["row"] == row]
            table.add_row(row, *(f"{share:.2f}" for share in shares))
        yield table


def _means(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, int]) -> Table:
    caption = "± the longer half of the 95 % interval"
    table = compact_table(title, caption, ["row"], list(columns))
    for row in rows:
        cells = (_spread(name, *row[name]) if name in row else "-" for name in columns)
        table.add_row(row["row"], *cells)
    return table


def _differences(count: str, comparisons: Sequence[Mapping[str, Any]]) -> Table:
    caption = f"± as above, {_LEVEL:.0%} unless stated; * the interval does not contain 0"
    table = compact_table(
        f"{count} examples: first minus second", caption, ["pair"], list(_COMPARED)
    )
    pairs: dict[str, dict[str, str]] = {}
    for comparison in comparisons:
        level = "" if comparison["level"] == _LEVEL else f", {comparison['level']:.1%}"
        cells = pairs.setdefault(f"{comparison['row']} - {comparison['against']}{level}", {})
        values = (comparison["difference"], comparison["low"], comparison["high"])
        star = " " if comparison["better"] == "neither" else "*"
        cells[comparison["column"]] = _spread(comparison["column"], *values, sign="+") + star
    for name, cells in pairs.items():
        table.add_row(name, *(cells.get(column, "-") for column in _COMPARED))
    return table


def _spread(column: str, mean: float, low: float, high: float, sign: str = "") -> str:
    digits = (_DIGITS | _STEP_DIGITS)[column]
    return f"{mean:{sign}.{digits}f} ±{max(mean - low, high - mean):.{digits}f}"
