"""Learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math

from eligo.train.config import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """Factor on the peak learning rate for `step` (from 0), set before that step.

    With warm-up length w: (step+1)/w, then a continuous decay over p = (step-w)/(total-w).
    Milestones are fractions of all steps. `legacy_poly` is DFormer's original: step/w, then
    (1 - step/total)^power, which jumps at step w.
    """
    warmup = warmup_steps(schedule, total_steps)
    if schedule.kind == "legacy_poly":
        if step < warmup:
            return step / warmup
        return max(0.0, 1 - step / total_steps) ** schedule.power
    if step < warmup:
        return (step + 1) / warmup
    part = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    match schedule.kind:
        case "constant":
            return 1.0
        case "linear":
            return 1 - part * (1 - schedule.final_ratio)
        case "cosine":
            cosine = (1 + math.cos(math.pi * part)) / 2
            return schedule.final_ratio + (1 - schedule.final_ratio) * cosine
        case "poly":
            return (1 - part) ** schedule.power
        case "milestones":
            passed = sum(step >= milestone * total_steps for milestone in schedule.milestones)
            return schedule.gamma**passed


def warmup_steps(schedule: ScheduleConfig, total_steps: int) -> int:
    """Length of the warm-up in steps."""
    if schedule.warmup < 1:
        return round(schedule.warmup * total_steps)
    return round(schedule.warmup)
