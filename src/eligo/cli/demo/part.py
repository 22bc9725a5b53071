"""What every part of the demo is given, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass

from eligo.explorer.record import ExplorerRecord
from eligo.report.intervals import wilson_interval


@dataclass(frozen=True)
class Work:
    """How the parts are to work."""

    seed: int
    """Of the scenes; no training used it."""
    device: str
    quick: bool = False
    """A quarter of everything."""

    def count(self, number: int) -> int:
        """How many of something, of so many usually."""
        return max(1, number // 4) if self.quick else number


@dataclass(frozen=True)
class Row:
    """One arm: who chose, and what came of it."""

    arm: str
    score: float | None
    """0 to 1, as are the ends of its 95 % interval; None: nobody knows what is right."""
    low: float
    high: float
    kept: str = ""
    """Of what it could have kept."""
    flops: float | None = None
    """Of what the whole costs, 0 to 1."""
    seconds: float | None = None
    is_ours: bool = False
    """Learned, by what this package is about."""

    @classmethod
    def of_hits(
        cls,
        arm: str,
        hits: Sequence[bool],
        kept: str = "",
        *,
        flops: float | None = None,
        seconds: float | None = None,
        is_ours: bool = False,
    ) -> "Row":
        """The share of what was right, with Wilson's interval; nothing to judge: no score."""
        if not hits:
            return cls(arm, None, 0.0, 1.0, kept, flops, seconds, is_ours)
        low, high = wilson_interval(sum(hits), len(hits))
        return cls(arm, sum(hits) / len(hits), low, high, kept, flops, seconds, is_ours)


@dataclass(frozen=True)
class Part:
    """One family's part of the demo."""

    name: str
    asks: str
    """The question that the family answers."""
    note: str
    """What was done and what the score is; without rows, why nothing was."""
    rows: tuple[Row, ...] = ()
    records: tuple[ExplorerRecord, ...] = ()
    seconds: float = 0.0


def worth_showing(
    won: Sequence[bool], lost: Sequence[bool], most: int, rest: Sequence[int] | None = None
) -> list[int]:
    """Which cases tell most: two that were won, one that was lost, then the rest in its order.

    >>> worth_showing([False, True, True, True], [True, False, False, False], 4)
    [1, 2, 0, 3]
    """
    first = [place for place, one in enumerate(won) if one][:2]
    first += [place for place, one in enumerate(lost) if one][:1]
    return list(dict.fromkeys([*first, *(range(len(won)) if rest is None else rest)]))[:most]
