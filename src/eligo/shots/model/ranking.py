"""V3's ranking losses: what the teacher's scores say beyond its best sequence. The V3 guide.

Every function gives one loss per step and which steps count; all steps of all rows at once. The
`documented` forms are the guide's, with its temperature applied once (its formula divides logits
twice, its debugging code once) and a margin of our own (it names none). The `corrected` forms
repair what they cannot do:
- Listwise: `sigmoid(score)` of the small gains that teachers give is always near 0.5, so the target
  hardly depends on the score; and KL(model || target) lets the model ignore good candidates. Ours
  is softmax(z-score) over the scored candidates, and KL(target || model).
- Pairwise: the guide's hardest negative may be the next label, or score better than the label.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import losses, ops

_EDGE = 1e-6  # how near a documented target comes to 0 and 1
_LEAST_STD = 1e-6  # scores that differ less rank nothing


class Steps(NamedTuple):
    """All steps of a batch: what could be picked, what was, and what the teacher thought."""

    logits: Float[Tensor, "batch steps candidates"]
    valid: Bool[Tensor, "batch steps candidates"]
    """Real and not picked before."""
    labels: Int[Tensor, "batch steps"]
    """-1: the step is ignored."""
    scores: Float[Tensor, "batch steps candidates"]
    """Teacher's; NaN where it gave none."""
    dense: bool
    """The teacher scored candidates; else only labels carry scores."""


class StepLoss(NamedTuple):
    """A loss for each step, and the steps that have one."""

    values: Float[Tensor, "batch steps"]
    counted: Bool[Tensor, "batch steps"]


def listwise_documented(steps: Steps) -> StepLoss:
    """`KL(p || t)`: t = sigmoid(score) on the label, the rest spread over the other valid ones."""
    on_label = _on(steps.labels, steps.valid)
    score = _label_score(steps)
    num_others = (steps.valid & ~on_label).sum(-1)
    counted = (steps.labels >= 0) & score.isfinite() & (num_others > 0)
    share = score.nan_to_num(0.0).sigmoid().clamp(_EDGE, 1 - _EDGE)
    rest = (1 - share) / num_others.clamp_min(1)
    target = torch.where(on_label, share.unsqueeze(-1), rest.unsqueeze(-1))
    return _counted(losses.listwise_kl(steps.logits, target, steps.valid, reverse=True), counted)


def listwise_corrected(steps: Steps, temperature: float = 1.0) -> StepLoss:
    """`KL(t || p)`, both over scored valid candidates: t = softmax(z-score / temperature)."""
    scored = steps.valid & steps.scores.isfinite()
    scores = torch.where(scored, steps.scores.float(), 0.0)
    centred = torch.where(scored, scores - ops.masked_mean(scores, scored).unsqueeze(-1), 0.0)
    std = ops.masked_mean(centred.square(), scored).sqrt()
    counted = (steps.labels >= 0) & (scored.sum(-1) > 1) & (std >= _LEAST_STD)
    z = centred / std.clamp_min(_LEAST_STD).unsqueeze(-1)
    target = ops.masked_softmax(z / temperature, scored)
    return _counted(losses.listwise_kl(steps.logits, target, scored), counted)


def pairwise_documented(steps: Steps, margin: float = 1.0) -> StepLoss:
    """`max(0, margin + max_{i != y} z_i - z_y)` over the valid candidates."""
    negatives = steps.valid & ~_on(steps.labels, steps.valid)
    counted = (steps.labels >= 0) & negatives.any(-1)
    values = losses.pairwise_hinge(
        _label_logit(steps), steps.logits, negatives, margin=margin, hardest=True
    )
    return _counted(values, counted)


def pairwise_corrected(steps: Steps, margin: float = 1.0) -> StepLoss:
    """Mean hinge over negatives: valid, no label, and scored lower (or not at all, if only labels
    carry scores)."""
    labelled = ops.kept_mask(steps.labels, steps.valid.shape[-1]).unsqueeze(-2)
    lower = steps.scores < _label_score(steps).unsqueeze(-1) if steps.dense else ~labelled
    negatives = steps.valid & ~labelled & lower
    counted = (steps.labels >= 0) & negatives.any(-1)
    values = losses.pairwise_hinge(_label_logit(steps), steps.logits, negatives, margin=margin)
    return _counted(values, counted)


def spread_beam_scores(
    labels: Int[Tensor, "batch steps"],
    beam_scores: Float[Tensor, "batch steps"],
    num_candidates: int,
) -> Float[Tensor, "batch steps candidates"]:
    """A score per label, as scores of candidates: each label carries its own, the rest NaN.

    The same at every step: labels picked before it are not valid there.
    """
    slots = torch.where(labels < 0, num_candidates, labels).long()
    spare = beam_scores.new_full((len(labels), num_candidates + 1), torch.nan)
    scores = spare.scatter(1, slots, beam_scores)[:, :num_candidates]
    return scores.unsqueeze(1).expand(-1, labels.shape[1], -1)


def _on(labels: Tensor, like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device) == labels.unsqueeze(-1)


def _label_score(steps: Steps) -> Tensor:
    return ops.gather(steps.scores.float(), steps.labels.unsqueeze(-1)).squeeze(-1)


def _label_logit(steps: Steps) -> Tensor:
    return ops.gather(steps.logits, steps.labels.unsqueeze(-1)).squeeze(-1)


def _counted(values: Tensor, counted: Tensor) -> StepLoss:
    return StepLoss(torch.where(counted, values, 0.0), counted)
