"""The cost of a plan: predicted for an image size, or counted from the trace of a model."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from eligo.errors import InputError
from eligo.tokens.cost.flops import Cost, Measured, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from eligo.tokens.trace import Trace


def plan_cost(
    host: HostShape,
    plan: Plan,
    text: int,
    *,
    grid: Sequence[int] | None = None,
    dtype: str = "bfloat16",
    measured: Measured | None = None,
) -> Cost:
    """Return the cost of a plan for a prompt with one image and `text` other tokens.

    `grid`: rows and columns of the vision tokens; needed if the host takes images of any size.
    """
    if grid is None:
        if host.vision is None:
            raise InputError(
                f"{host.name}: the number of vision tokens depends on the image; give its grid"
            )
        grid = (host.vision,)
    schedule = plan_schedule(plan, host.num_layers, grid, text)
    return count_cost(host, schedule, selectors=selectors_of(plan), dtype=dtype, measured=measured)


def selectors_of(plan: Plan) -> list[Reducer | None]:
    """Return the reducers of stage 1 (None without one) and of every cut."""
    return [plan.stage1 and plan.stage1.reducer, *(cut.reducer for cut in plan.cuts)]


def plan_schedule(plan: Plan, num_layers: int, grid: Sequence[int], text: int) -> Schedule:
    """Return the token counts per layer for an image with this grid."""
    plan = plan.resolve(num_layers)
    counts = plan.counts(grid)
    cuts = zip(plan.layers, counts[1:] if plan.stage1 else counts, strict=True)
    return Schedule(math.prod(grid), plan.count(grid), tuple(cuts), text, num_layers)


def trace_schedules(
    trace: "Trace", num_layers: int, attention_mask: "Int[Tensor, 'batch length'] | None" = None
) -> list[Schedule]:
    """Return the schedule of every row of the batch; the padding in `attention_mask` is free."""
    assert trace.grid is not None
    assert trace.rows is not None
    lengths = (trace.columns[0] >= 0).sum(-1).cpu()
    rows = trace.rows.cpu()
    padding = [0] * len(lengths)
    if attention_mask is not None:
        padding = (attention_mask == 0).sum(-1).tolist()

    def per_row(counts: "Tensor") -> list[int]:
        return lengths.new_zeros(len(lengths)).index_add(0, rows, counts.cpu().long()).tolist()

    vision = per_row(trace.grid.prod(-1))
    left = {stage.layer: per_row((stage.positions >= 0).sum(-1)) for stage in trace.stages}
    merged = left.pop(0, vision)
    schedule = cache(Schedule)  # most rows are alike
    return [
        schedule(
            vision[row],
            merged[row],
            tuple((layer, left[layer][row]) for layer in sorted(left)),
            length - merged[row] - padding[row],
            num_layers,
        )
        for row, length in enumerate(lengths.tolist())
    ]


def mean_cost(shape: HostShape, plan: Plan, schedules: Counter[Schedule]) -> dict[str, Any]:
    """Return the mean cost over prompts with these schedules, as plain values."""
    counted = [
        (count_cost(shape, schedule, selectors=selectors_of(plan)), times)
        for schedule, times in schedules.items()
    ]

    def mean(value: Callable[[Cost], float]) -> float:
        return sum(value(cost) * times for cost, times in counted) / schedules.total()

    llm, full = mean(lambda cost: cost.llm), mean(lambda cost: cost.llm_full)
    selector = mean(lambda cost: cost.selector or 0.0)
    rest = mean(lambda cost: cost.tower + cost.projector)
    rest_full = mean(lambda cost: cost.tower + cost.projector_full)
    most_common = max(schedules, key=lambda schedule: schedules[schedule])
    budgets = [most_common.merged, *(budget for _, budget in most_common.cuts)]
    return {
        "kept": budgets if plan.stages else [most_common.vision],
        "layers": [0, *(layer for layer, _ in most_common.cuts)],
        "vision_keep_mean": mean(lambda cost: cost.vision_keep_mean),
        "mean_length": mean(lambda cost: cost.mean_length),
        "flops_llm": llm,
        "flops_selector": selector,
        "flops_total": rest + selector + llm,
        "flops_reduction_llm": 1 - llm / full,
        "flops_reduction_with_selector": 1 - (llm + selector) / full,
        "flops_reduction_total": 1 - (rest + selector + llm) / (rest_full + full),
        "uncounted": list(counted[0][0].uncounted),
    }
