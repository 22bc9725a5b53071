"""What a plan makes of an image, and what it costs: its schedule counted, its reducers included."""

import math
from collections.abc import Sequence

from eligo.errors import InputError
from eligo.tokens.cost.count import Cost, Measured, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.plan import Plan


def plan_cost(
    host: HostShape,
    plan: Plan,
    text: int,
    *,
    grid: Sequence[int] | None = None,
    dtype: str = "bfloat16",
    measured: Measured | None = None,
) -> Cost:
    """The cost of a plan for a prompt with one image and `text` other tokens.

    `grid` are rows and columns of its vision tokens; a host of one image size knows their number.
    """
    if grid is None:
        if host.vision is None:
            raise InputError(f"{host.name}: vision tokens follow the image's size; give its grid")
        grid = (host.vision,)
    reducers = [plan.stage1.reducer if plan.stage1 else None, *(cut.reducer for cut in plan.cuts)]
    schedule = plan_schedule(plan, host.num_layers, grid, text)
    return count_cost(host, schedule, selectors=reducers, dtype=dtype, measured=measured)


def plan_schedule(plan: Plan, num_layers: int, grid: Sequence[int], text: int) -> Schedule:
    """How many tokens are left where, of one image with this grid of tokens."""
    plan = plan.resolve(num_layers)
    counts = plan.counts(grid)
    cuts = zip(plan.layers, counts[1:] if plan.stage1 else counts, strict=True)
    return Schedule(math.prod(grid), plan.count(grid), tuple(cuts), text, num_layers)
