"""What the exam found: the table, differences with intervals, and every must as met or missed.

Means are over queries and seeds; intervals from a paired bootstrap over lexicons and seeds: queries
of a lexicon share scenes, words and examples, so they are drawn together. Oracles see the answer
and stand apart. A must is judged by the interval, never by the mean alone. Section 6.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eligo.report.intervals import bootstrap_means
from eligo.shots.learner.health import HEADROOM, NEAR_CHANCE, ORACLE
from eligo.shots.learner.measure import COLUMNS
from eligo.shots.learner.rows import BEAM, STATIC

Values = list[float | None]
Runs = list[Mapping[str, Mapping[str, Values]]]
"""Of each seed: shots, then column, then a value for each query."""
_POINTS = 100.0
_WORSE = -1.0  # points of accuracy that V3 may lose
_BOTH = 0.975  # level of each of two comparisons of which one must hold
_PAIRS = (
    ("v1", "knn", 0.95), ("v2_gru", "v1", _BOTH), ("v0", "v1", _BOTH), ("v3", "v1", 0.95),
    ("v2", "v1", 0.95), ("mmr", "knn", 0.95), ("dpp", "knn", 0.95), ("v2_gru", "dpp", 0.95),
    ("v2_gru", "mmr", 0.95), ("v1_gate", "v2_gru", 0.95), ("v1_gate", "mmr", 0.95),
    ("v1_gate", "dpp", 0.95),
    (BEAM, STATIC, 0.95),
)  # fmt: skip


class Results:
    """Every row's values, with the arithmetic that the verdict needs."""

    def __init__(
        self, rows: Mapping[str, Runs], lexicons: Sequence[str | None], resamples: int
    ) -> None:
        self.rows, self.lexicons, self.resamples = rows, lexicons, resamples

    def values(self, row: str, shots: str, column: str) -> list[list[float]] | None:
        """By seed and query; None where a row has no such column. Queries that have no value (a
        constant teacher has no ranking) have none in any row, and are left out."""
        found = [run[shots].get(column) for run in self.rows[row]]
        if any(values is None for values in found):
            return None
        scale = _POINTS if column == "accuracy" else 1.0
        return [[scale * v for v in values or [] if v is not None] for values in found]

    def means(self, shots: str) -> list[dict[str, Any]]:
        """The table: a row for each, with the intervals of its columns."""
        table = []
        for row in self.rows:
            told: dict[str, Any] = {"row": row, "seeds": len(self.rows[row])}
            ranked = self.rows[row][0][shots].get("ndcg")
            if ranked is not None:
                told["without ndcg"] = sum(value is None for value in ranked)
            for column in COLUMNS:
                values = self.values(row, shots, column)
                if values is not None and values[0]:
                    told[column] = self._interval(values, row, shots, column)
            table.append(told)
        return table

    def _interval(
        self, values: list[list[float]], row: str, shots: str, column: str, level: float = 0.95
    ) -> tuple[float, float, float]:
        asked = self.rows[row][0][shots][column]
        groups = [
            lexicon
            for lexicon, value in zip(self.lexicons, asked, strict=True)
            if value is not None
        ]
        return bootstrap_means([values], resamples=self.resamples, level=level, groups=groups)[0]

    def difference(
        self, row: str, other: str, shots: str, column: str, level: float
    ) -> tuple[float, float, float] | None:
        """By how much a row is ahead, and the interval; a row of one run meets all of another's."""
        ours, theirs = (self.values(name, shots, column) for name in (row, other))
        if not ours or not theirs or not ours[0]:
            return None
        count = max(len(ours), len(theirs))
        pairs = [(ours[n % len(ours)], theirs[n % len(theirs)]) for n in range(count)]
        apart = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
        return self._interval(apart, row, shots, column, level)


def judge(
    rows: Mapping[str, Runs],
    health: Mapping[str, Any],
    shots: Sequence[int],
    lexicons: Sequence[str | None],
    resamples: int,
) -> dict[str, Any]:
    """All that the exam found, as JSON holds it; `lexicons` are those of the queries."""
    results = Results(rows, lexicons, resamples)
    # What was tried to mend V3 is compared like V3 itself.
    pairs = [*_PAIRS, *((row, "v1", 0.95) for row in rows if row.startswith("v3_"))]
    comparisons = [
        {"row": row, "against": other, "shots": count, "column": column, "level": level}
        | dict(zip(("difference", "low", "high"), found, strict=True))
        for count in shots
        for row, other, level in pairs
        if row in rows and other in rows
        for column in ("accuracy", "utility", "ndcg", "mrr")
        if (found := results.difference(row, other, str(count), column, level)) is not None
    ]
    for told in comparisons:
        ahead, behind = told["low"] > 0, told["high"] < 0
        told["better"] = told["row"] if ahead else told["against"] if behind else "neither"
    return {
        "tables": {str(count): results.means(str(count)) for count in shots},
        "comparisons": comparisons,
        "musts": [*_of_health(health), *_of_selectors(comparisons, shots[0])],
    }


def must(name: str, found: float, bar: str, met: bool) -> dict[str, Any]:
    """A bar, what was found, and whether it is met."""
    return {"must": name, "found": found, "bar": bar, "met": "met" if met else "MISSED"}


def _of_health(health: Mapping[str, Any]) -> list[dict[str, Any]]:
    over, ahead = health["zero_shot"] - health["chance"], health["beam"] - health["static"]
    return [
        must("health: right behind the best pair", health["beam"], f">= {ORACLE}",
              health["oracle_is_good"]),
        must("health: zero-shot above chance", over, f"<= {NEAR_CHANCE}",
              health["zero_shot_is_chance"]),
        must("health: best pair above best singles", ahead, f">= {HEADROOM}",
              health["pairs_beat_singles"]),
    ]  # fmt: skip


def _of_selectors(comparisons: list[dict[str, Any]], shots: int) -> list[dict[str, Any]]:
    """Those whose arms were run, by the lower end of the interval."""
    low = {
        (told["row"], told["against"], told["column"]): told["low"]
        for told in comparisons
        if told["shots"] == shots
    }
    musts = []
    if (found := low.get(("v1", "knn", "accuracy"))) is not None:
        musts.append(must("v1 above knn (points, lower end)", found, "> 0", found > 0))
    states = [low[key] for arm in ("v2_gru", "v0") if (key := (arm, "v1", "accuracy")) in low]
    if states:
        name = "v2_gru or v0 above v1 (points, lower end of 97.5 %, the better one)"
        musts.append(must(name, max(states), "> 0", max(states) > 0))
    if (found := low.get(("v3", "v1", "accuracy"))) is not None:
        name = "v3 not below v1 (points, lower end)"
        musts.append(must(name, found, f"> {_WORSE}", found > _WORSE))
    for column in ("ndcg", "mrr"):
        if (found := low.get(("v3", "v1", column))) is not None:
            name = f"v3 above v1 in {column} (lower end)"
            musts.append(must(name, found, "> 0", found > 0))
    return musts
