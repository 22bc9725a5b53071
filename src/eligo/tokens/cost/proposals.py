"""Schedules that reach a target: tokens to merge, layers to cut at, and budgets of the cuts.

The default schedule halves the tokens and cuts at 1/16, 1/4 and 1/2 of the depth, to 200, 150 and
100 of 288. The other proposals cut at the same layers in similar proportions and differ in how much
they merge, from everything before the language model to nothing. Their cuts keep as much as the
target allows; a cut that saves almost nothing is left out.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from eligo.errors import InputError
from eligo.tokens.cost.flops import SMALL_CUT, Cost, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape

DEPTHS = (1 / 16, 1 / 4, 1 / 2)
"""Depths of the default cuts."""
PROPORTIONS = (200 / 288, 150 / 288, 100 / 288)
"""Shares of the merged tokens that the default cuts keep."""
_MERGES = (0.5, 0.75, 1 / 3, 1.0)  # the first that works is proposed
_NEAR = 0.1  # the default is proposed if it exceeds the target by at most this
_STEEPEST = 30.0  # largest power of the proportions


@dataclass(frozen=True)
class Proposal:
    """A schedule with its name and cost."""

    name: str
    cost: Cost

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.cost.schedule


def cut_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers of the default depths: 2, 8, 16 of 32; 1, 3, 6 of 12."""
    layers = (max(1, int(depth * num_layers + 0.5)) for depth in DEPTHS)
    return tuple(dict.fromkeys(layer for layer in layers if layer < num_layers))


def default_schedule(host: HostShape, vision: int, text: int) -> Schedule:
    """Return the default schedule: half of the tokens merged, then the default cuts."""
    uncut = Schedule(vision, _at_least_one(vision / 2), (), text, host.num_layers)
    return _with_cuts(
        uncut, tuple(zip(cut_layers(host.num_layers), PROPORTIONS, strict=False)), 1.0
    )


def propose(host: HostShape, vision: int, text: int, target: float) -> list[Proposal]:
    """Return schedules that save `target` (0 to 1) of the FLOPs of the language model, best first.

    A schedule that cannot reach the target keeps as little as possible and is listed too.
    """
    if not 0 < target < 1:
        raise InputError(f"got target {target}, expected a share between 0 and 1, such as 0.6")
    if host.num_layers < 2:
        raise InputError(f"got {host.num_layers} layers, expected 2 or more: layer 0 is never cut")
    proposals = [
        Proposal(name, count_cost(host, schedule))
        for name, schedule in _schedules(host, vision, text, target)
    ]
    default = Proposal("default", count_cost(host, default_schedule(host, vision, text)))
    fits = target <= default.cost.reduction_llm <= target + _NEAR
    proposals.insert(0 if fits else len(proposals), default)
    return sorted(proposals, key=lambda proposal: proposal.cost.reduction_llm < target)


def _schedules(
    host: HostShape, vision: int, text: int, target: float
) -> Iterator[tuple[str, Schedule]]:
    def uncut_to(merged: int) -> Schedule:
        return Schedule(vision, merged, (), text, host.num_layers)

    for share in _MERGES:
        uncut = uncut_to(_at_least_one(share * vision))
        if not _saves(host, uncut, target):
            yield f"merge {share:.0%}" if share < 1 else "cuts only", _solve(host, uncut, target)
    # The reduction falls as more is kept.
    kept = bisect_left(
        range(1, vision + 1), True, key=lambda kept: not _saves(host, uncut_to(kept), target)
    )
    yield "merge only", uncut_to(max(1, kept))


def _solve(host: HostShape, uncut: Schedule, target: float) -> Schedule:
    """Return the schedule with the largest budgets that reaches the target."""
    places = list(zip(cut_layers(host.num_layers), PROPORTIONS, strict=False))
    while True:
        gentle, steep = 0.0, _STEEPEST  # powers of the proportions
        for _ in range(40):
            middle = (gentle + steep) / 2
            if _saves(host, _with_cuts(uncut, places, middle), target):
                steep = middle
            else:
                gentle = middle
        solved = _with_cuts(uncut, places, steep)
        savings = count_cost(host, solved).cut_savings
        if len(places) == 1 or min(savings) >= SMALL_CUT:
            return solved
        places.pop(savings.index(min(savings)))


def _with_cuts(uncut: Schedule, places: Sequence[tuple[int, float]], power: float) -> Schedule:
    cuts = [(layer, _at_least_one(uncut.merged * share**power)) for layer, share in places]
    return replace(uncut, cuts=tuple(cuts))


def _saves(host: HostShape, schedule: Schedule, target: float) -> bool:
    return count_cost(host, schedule).reduction_llm >= target


def _at_least_one(count: float) -> int:
    return max(1, int(count + 0.5))
