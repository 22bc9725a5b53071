"""Bookkeeping of the steps: what is a label, what is left, how losses of steps become one."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.shots.model.ranking import StepLoss


def best_candidates(
    logits: Float[Tensor, "rows steps candidates"],
) -> Int[Tensor, "rows steps"]:
    """The candidate with the largest logit, the first of equals; -1 where all are -inf."""
    if not logits.shape[-1]:
        return logits.new_full(logits.shape[:-1], -1, dtype=torch.int64)
    best = logits.argmax(-1)  # torch promises the first of equals
    return torch.where(ops.gather(logits, best.unsqueeze(-1)).squeeze(-1) == -torch.inf, -1, best)


def first_occurrences(labels: Int[Tensor, "rows steps"]) -> Int[Tensor, "rows steps"]:
    """Labels as int64, and -1 where one stood before."""
    repeated = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).tril(-1).any(-1)
    return torch.where(repeated, -1, labels.long())


def available(
    picks: Int[Tensor, "rows steps"], mask: Bool[Tensor, "rows candidates"]
) -> Bool[Tensor, "rows steps_and_end candidates"]:
    """What can be picked at each step, and after the last: real, and not picked before.

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


def over_rows(steps: StepLoss, weights: Float[Tensor, " rows"] | None) -> Float[Tensor, ""]:
    """Mean over the counted steps of a row, then over rows that have one, by their weights."""
    rows = ops.masked_mean(steps.values, steps.counted)
    shares = steps.counted.any(-1).float()
    if weights is not None:
        shares = shares * weights
    return (rows * shares).sum() / shares.sum().clamp_min(torch.finfo(torch.float32).tiny)
