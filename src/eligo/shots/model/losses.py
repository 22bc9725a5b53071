"""Losses of the pointer selectors over the steps of a batch, and the masks they need.

Cross-entropy in closed form, where scores do not depend on the step (Plackett-Luce):

    L_t = log Z_t - (1 - e) s_{y_t} - e mean_{V_t} s,   Z_t = sum_{i in V_t} exp(s_i),
    dL_t/ds_j = [j in V_t] (exp(s_j) / Z_t - e / |V_t|) - (1 - e) [j = y_t]

V_t is what is left at step t, so `log Z_t` is a cumulative log-sum from the last pick to the first,
on top of what is never picked. Values equal `losses.plackett_luce`; the explicit gradient halves
the time of a training step's loss.

V3's ranking losses use the teacher's scores beyond its best sequence. The `documented` forms are
those of the published V3 design (docs/sources.md), with its temperature applied once (its formula
divides logits twice, its debugging code once) and a margin of our own (it names none). The
`corrected` forms repair two problems:
- Listwise: `sigmoid(score)` of a teacher's small gains is always near 0.5, so the target hardly
  depends on the score; and KL(model || target) lets the model ignore good candidates. Ours is
  softmax(z-score) over the scored candidates, and KL(target || model).
- Pairwise: the documented hardest negative may be the next label, or score better than the label.
`regression` is not part of the design.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import losses, ops

_ABSENT = -1e30  # exp gives 0, and unlike -inf sums stay finite
_EDGE = 1e-6  # distance of a documented target from 0 and 1
_MIN_STD = 1e-6  # scores that differ less do not rank anything


def best_candidates(logits: Float[Tensor, "rows steps candidates"]) -> Int[Tensor, "rows steps"]:
    """Return the candidate with the largest logit, the first of equals; -1 where all are -inf."""
    if not logits.shape[-1]:
        return logits.new_full(logits.shape[:-1], -1, dtype=torch.int64)
    best = logits.argmax(-1)  # torch guarantees the first of equals
    return torch.where(ops.gather(logits, best.unsqueeze(-1)).squeeze(-1) == -torch.inf, -1, best)


def first_occurrences(labels: Int[Tensor, "rows steps"]) -> Int[Tensor, "rows steps"]:
    """Return labels as int64, with -1 for repetitions."""
    repeated = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).tril(-1).any(-1)
    return torch.where(repeated, -1, labels.long())


def available(
    picks: Int[Tensor, "rows steps"], mask: Bool[Tensor, "rows candidates"]
) -> Bool[Tensor, "rows steps_and_end candidates"]:
    """Return what is real and not yet picked, at each step and after the last.

    >>> available(torch.tensor([[1, 0]]), torch.tensor([[True, True, False]])).int()
    tensor([[[1, 1, 0],
             [1, 0, 0],
             [0, 0, 0]]], dtype=torch.int32)
    """
    num_steps, num_candidates = picks.shape[1], mask.shape[1]
    steps = torch.arange(num_steps + 1, device=mask.device)
    picked_at = steps.new_full((len(mask), num_candidates + 1), num_steps + 1)
    slots = torch.where(picks < 0, num_candidates, picks)  # the spare column takes the -1s
    picked_at = picked_at.scatter(1, slots, steps[:-1].expand_as(picks))[:, :num_candidates]
    return (picked_at.unsqueeze(1) >= steps[:, None]) & mask.unsqueeze(1)


class StepLoss(NamedTuple):
    """A loss for each step, and the steps that have one."""

    values: Float[Tensor, "batch steps"]
    counted: Bool[Tensor, "batch steps"]


def over_rows(steps: StepLoss, weights: Float[Tensor, " rows"] | None) -> Float[Tensor, ""]:
    """Return the mean over the counted steps of each row, then the weighted mean over rows."""
    rows = ops.masked_mean(steps.values, steps.counted)
    shares = steps.counted.any(-1).float()
    if weights is not None:
        shares = shares * weights
    return (rows * shares).sum() / shares.sum().clamp_min(torch.finfo(torch.float32).tiny)


def plackett_luce_steps(
    scores: Float[Tensor, "batch candidates"],
    picks: Int[Tensor, "batch steps"],
    left: Bool[Tensor, "batch steps_and_end candidates"],
    smoothing: float,
) -> Float[Tensor, "batch steps"]:
    """Return the smoothed cross-entropy of each pick among what is left; 0 where it is -1.

    No pick comes twice; `left` comes from `available`.
    """
    if not scores.shape[1]:
        return scores.new_zeros(picks.shape) + scores.sum()
    values: Tensor = _PlackettLuce.apply(scores, picks, left, smoothing)  # pyright: ignore[reportAssignmentType]
    return values


class _PlackettLuce(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, scores: Tensor, picks: Tensor, left: Tensor, smoothing: float
    ) -> Tensor:
        labelled, slots, never = picks >= 0, picks.clamp_min(0), left[:, -1]
        picked = scores.gather(1, slots)
        rest = torch.where(never, scores, _ABSENT).logsumexp(1, keepdim=True)
        log_z = _from_the_end(torch.logcumsumexp, torch.where(labelled, picked, _ABSENT), rest)
        loss = torch.sub(log_z, picked, alpha=1 - smoothing)
        count = left[:, :-1].sum(2).clamp_min_(1)
        if smoothing:
            rest = torch.where(never, scores, 0.0).sum(1, keepdim=True)
            total = _from_the_end(torch.cumsum, picked * labelled, rest)
            loss.addcdiv_(total, count, value=-smoothing)
        ctx.save_for_backward(scores, picks, slots, left, log_z, count)
        ctx.smoothing = smoothing
        return loss.mul_(labelled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores, picks, slots, left, log_z, count = ctx.saved_tensors
        gradient = gradient * (picks >= 0)
        share = (scores.unsqueeze(1) - log_z.unsqueeze(2)).exp_()
        share -= (ctx.smoothing / count).unsqueeze(2)
        over = torch.where(left[:, :-1], share, 0.0).mul_(gradient.unsqueeze(2)).sum(1)
        # An ignored step adds 0.
        return over.scatter_add_(1, slots, gradient * (ctx.smoothing - 1)), None, None, None


def _from_the_end(cumulate: Any, steps: Tensor, rest: Tensor) -> Tensor:
    whole = torch.cat([rest, steps.flip(1)], 1)
    return cumulate(whole, 1)[:, 1:].flip(1)


class Steps(NamedTuple):
    """Logits, labels and teacher's scores of all steps of a batch."""

    logits: Float[Tensor, "batch steps candidates"]
    valid: Bool[Tensor, "batch steps candidates"]
    """Real and not picked before."""
    labels: Int[Tensor, "batch steps"]
    """-1: the step is ignored."""
    scores: Float[Tensor, "batch steps candidates"]
    """The teacher's; NaN where it gave none."""
    dense: bool
    """Whether the teacher scored all candidates, not only the labels."""

    @property
    def is_label(self) -> Bool[Tensor, "batch steps candidates"]:
        """Whether a candidate is the label of its step."""
        index = torch.arange(self.valid.shape[-1], device=self.valid.device)
        return index == self.labels.unsqueeze(-1)

    @property
    def label_scores(self) -> Float[Tensor, "batch steps"]:
        """The teacher's scores of the labels."""
        return ops.gather(self.scores.float(), self.labels.unsqueeze(-1)).squeeze(-1)

    @property
    def label_logits(self) -> Float[Tensor, "batch steps"]:
        """The logits of the labels."""
        return ops.gather(self.logits, self.labels.unsqueeze(-1)).squeeze(-1)


def listwise_documented(steps: Steps) -> StepLoss:
    """`KL(p || t)`: t = sigmoid(score) on the label, the rest spread over the other valid ones."""
    scores, is_label = steps.label_scores, steps.is_label
    num_others = (steps.valid & ~is_label).sum(-1)
    counted = (steps.labels >= 0) & scores.isfinite() & (num_others > 0)
    share = scores.nan_to_num(0.0).sigmoid().clamp(_EDGE, 1 - _EDGE)
    rest = (1 - share) / num_others.clamp_min(1)
    target = torch.where(is_label, share.unsqueeze(-1), rest.unsqueeze(-1))
    return _counted(losses.listwise_kl(steps.logits, target, steps.valid, reverse=True), counted)


def listwise_corrected(steps: Steps, temperature: float = 1.0) -> StepLoss:
    """`KL(t || p)`, both over scored valid candidates: t = softmax(z-score / temperature)."""
    scored = steps.valid & steps.scores.isfinite()
    scores = torch.where(scored, steps.scores.float(), 0.0)
    centred = torch.where(scored, scores - ops.masked_mean(scores, scored).unsqueeze(-1), 0.0)
    std = ops.masked_mean(centred.square(), scored).sqrt()
    counted = (steps.labels >= 0) & (scored.sum(-1) > 1) & (std >= _MIN_STD)
    z = centred / std.clamp_min(_MIN_STD).unsqueeze(-1)
    target = ops.masked_softmax(z / temperature, scored)
    return _counted(losses.listwise_kl(steps.logits, target, scored), counted)


def regression(steps: Steps) -> StepLoss:
    """Mean of `((z_i - mean z) - (s_i - mean s))^2` over scored valid candidates.

    Logits learn the teacher's scores up to a constant, and so how much a better example is worth.
    """
    scored = steps.valid & steps.scores.isfinite()
    counted = (steps.labels >= 0) & (scored.sum(-1) > 1)
    error = torch.where(scored, steps.logits - steps.scores.float(), 0.0)
    centred = torch.where(scored, error - ops.masked_mean(error, scored).unsqueeze(-1), 0.0)
    return _counted(ops.masked_mean(centred.square(), scored), counted)


def pairwise_documented(steps: Steps, margin: float = 1.0) -> StepLoss:
    """`max(0, margin + max_{i != y} z_i - z_y)` over the valid candidates."""
    negatives = steps.valid & ~steps.is_label
    counted = (steps.labels >= 0) & negatives.any(-1)
    values = losses.pairwise_hinge(
        steps.label_logits, steps.logits, negatives, margin=margin, hardest=True
    )
    return _counted(values, counted)


def pairwise_corrected(steps: Steps, margin: float = 1.0) -> StepLoss:
    """Mean hinge over negatives: valid, no label, and scored lower if all were scored."""
    labelled = ops.kept_mask(steps.labels, steps.valid.shape[-1]).unsqueeze(-2)
    lower = steps.scores < steps.label_scores.unsqueeze(-1) if steps.dense else ~labelled
    negatives = steps.valid & ~labelled & lower
    counted = (steps.labels >= 0) & negatives.any(-1)
    values = losses.pairwise_hinge(steps.label_logits, steps.logits, negatives, margin=margin)
    return _counted(values, counted)


def spread_beam_scores(
    labels: Int[Tensor, "batch steps"],
    beam_scores: Float[Tensor, "batch steps"],
    num_candidates: int,
) -> Float[Tensor, "batch steps candidates"]:
    """Return scores of candidates: each label has its own at every step, the rest NaN."""
    slots = torch.where(labels < 0, num_candidates, labels).long()
    spare = beam_scores.new_full((len(labels), num_candidates + 1), torch.nan)
    scores = spare.scatter(1, slots, beam_scores)[:, :num_candidates]
    return scores.unsqueeze(1).expand(-1, labels.shape[1], -1)


def _counted(values: Tensor, counted: Tensor) -> StepLoss:
    return StepLoss(torch.where(counted, values, 0.0), counted)
