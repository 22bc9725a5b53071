"""Cross-entropy over all steps at once, where scores do not depend on the step. Section 3.

    L_t = log Z_t - (1 - e) s_{y_t} - e mean_{V_t} s,   Z_t = sum_{i in V_t} exp(s_i),
    dL_t/ds_j = [j in V_t] (exp(s_j) / Z_t - e / |V_t|) - (1 - e) [j = y_t]

V_t is what is left at step t, so `log Z_t` is a cumulative log-sum from the last pick to the first,
on top of what is never picked: Plackett-Luce, as `losses.plackett_luce`, whose values these are.
The gradient is written down rather than traced: half the time of a training step's loss.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_ABSENT = -1e30  # exp gives 0, and unlike -inf sums stay finite


def plackett_luce_steps(
    scores: Float[Tensor, "batch candidates"],
    picks: Int[Tensor, "batch steps"],
    left: Bool[Tensor, "batch steps_and_end candidates"],
    smoothing: float,
) -> Float[Tensor, "batch steps"]:
    """The smoothed cross-entropy of each pick among what is left at its step; 0 where it is -1.

    No pick comes twice. `left` is what can be picked at each step, and after the last one.
    """
    if not scores.shape[1]:
        return scores.new_zeros(picks.shape) + scores.sum()
    values: Tensor = _ClosedForm.apply(scores, picks, left, smoothing)  # pyright: ignore[reportAssignmentType]
    return values


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, scores: Tensor, picks: Tensor, left: Tensor, smoothing: float
    ) -> Tensor:
        taught, slots, never = picks >= 0, picks.clamp_min(0), left[:, -1]
        picked = scores.gather(1, slots)
        rest = torch.where(never, scores, _ABSENT).logsumexp(1, keepdim=True)
        log_z = _from_the_end(torch.logcumsumexp, torch.where(taught, picked, _ABSENT), rest)
        loss = torch.sub(log_z, picked, alpha=1 - smoothing)
        count = left[:, :-1].sum(2).clamp_min_(1)
        if smoothing:
            rest = torch.where(never, scores, 0.0).sum(1, keepdim=True)
            total = _from_the_end(torch.cumsum, picked * taught, rest)
            loss.addcdiv_(total, count, value=-smoothing)
        ctx.save_for_backward(scores, picks, slots, left, log_z, count)
        ctx.smoothing = smoothing
        return loss.mul_(taught)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores, picks, slots, left, log_z, count = ctx.saved_tensors
        gradient = gradient * (picks >= 0)
        share = (scores.unsqueeze(1) - log_z.unsqueeze(2)).exp_()
        share -= (ctx.smoothing / count).unsqueeze(2)
        over = torch.where(left[:, :-1], share, 0.0).mul_(gradient.unsqueeze(2)).sum(1)
        # An ignored step adds 0, wherever it is put.
        return over.scatter_add_(1, slots, gradient * (ctx.smoothing - 1)), None, None, None


def _from_the_end(cumulate: Any, steps: Tensor, rest: Tensor) -> Tensor:
    whole = torch.cat([rest, steps.flip(1)], 1)
    return cumulate(whole, 1)[:, 1:].flip(1)
