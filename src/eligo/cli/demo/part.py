"""The settings and results of a part of the demo."""

from collections.abc import Sequence
from dataclasses import dataclass

from eligo.explorer.record import ExplorerRecord
from eligo.report.intervals import wilson_interval


@dataclass(frozen=True)
class DemoSettings:
    """The settings of all parts."""

    seed: int
    """Seed of the scenes; no model was trained with it."""
    device: str
    quick: bool = False
    """Use a quarter of the data."""

    def count(self, number: int) -> int:
        """Return a number of samples: a quarter of it if `quick`."""
        return max(1, number // 4) if self.quick else number


@dataclass(frozen=True)
class MethodResult:
    """The result of one method: a row of the table."""

    method: str
    score: float | None
    """From 0 to 1; None without reference answers. `low` and `high`: its 95 % interval."""
    low: float
    high: float
    kept: str = ""
    """What it kept, such as `4 of 36`."""
    flops: float | None = None
    """Relative to the unpruned model."""
    seconds: float | None = None
    is_ours: bool = False
    """Whether it is a trained model of eligo."""

    @classmethod
    def of_hits(
        cls,
        method: str,
        hits: Sequence[bool],
        kept: str = "",
        *,
        flops: float | None = None,
        seconds: float | None = None,
        is_ours: bool = False,
    ) -> "MethodResult":
        """Score by the share of hits, with Wilson's interval; no score without hits."""
        if not hits:
            return cls(method, None, 0.0, 1.0, kept, flops, seconds, is_ours)
        low, high = wilson_interval(sum(hits), len(hits))
        return cls(method, sum(hits) / len(hits), low, high, kept, flops, seconds, is_ours)


@dataclass(frozen=True)
class Part:
    """One family's part of the demo."""

    name: str
    question: str
    """The question that the family answers."""
    note: str
    """What was measured and how; without rows, why nothing was measured."""
    rows: tuple[MethodResult, ...] = ()
    records: tuple[ExplorerRecord, ...] = ()
    seconds: float = 0.0


def pick_examples(
    won: Sequence[bool], lost: Sequence[bool], most: int, rest: Sequence[int] | None = None
) -> list[int]:
    """Return the examples to show: two won, one lost, then `rest` (by default all) in order.

    >>> pick_examples([False, True, True, True], [True, False, False, False], 4)
    [1, 2, 0, 3]
    """
    first = [place for place, is_won in enumerate(won) if is_won][:2]
    first += [place for place, is_lost in enumerate(lost) if is_lost][:1]
    return list(dict.fromkeys([*first, *(range(len(won)) if rest is None else rest)]))[:most]
