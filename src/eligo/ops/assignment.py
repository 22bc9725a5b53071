"""Merging dropped candidates into kept ones, and copying the result back.

An assignment is a matrix of weights `*batch kept candidates` (as `Selection.assignment`): entry
(j, i) is the part of candidate i that goes into kept j. The soft assignment is the token merger of
the two-stage pruning design (docs/sources.md), with one change: `fold` divides by the row sums, so
that it is a mean and keeps the norms that later layers were trained on.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.ops.masked import masked_softmax
from eligo.ops.topk import straight_through


def soft_assignment(
    logits: Float[Tensor, "*batch kept candidates"],
    centres: Int[Tensor, "*batch kept"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    hard: bool = False,
    padded: bool = True,
) -> Float[Tensor, "*batch kept candidates"]:
    """Each candidate's softmax over the centres: `A_ji = exp(l_ji) / sum_j' exp(l_j'i)`.

    A centre is assigned to itself only. Centres of -1 (none without `padded`) and masked candidates
    get zeros. `hard=True` assigns a candidate to its best centre (ties: the first), with the
    gradient of the soft assignment. Multiply by weights per candidate for the weighted form.

    >>> soft_assignment(torch.zeros(2, 3), torch.tensor([0, 2]))
    tensor([[1.0000, 0.5000, 0.0000],
            [0.0000, 0.5000, 1.0000]])
    """
    num_kept, num_candidates = logits.shape[-2:]
    if hard and not padded and not logits.requires_grad and num_kept > 0:
        return _owned(logits, centres, mask)
    real_centre = (centres >= 0).unsqueeze(-1) if padded else None  # (*batch, kept, 1)
    candidates = torch.arange(num_candidates, device=logits.device)
    own = centres.unsqueeze(-1) == candidates  # (*batch, kept, candidates)
    is_centre = own.any(-2, keepdim=True)
    if hard and num_kept > 0:
        filled = logits.detach().float()
        if real_centre is not None:
            filled = filled.masked_fill(~real_centre, -torch.inf)
        best = filled.argmax(dim=-2, keepdim=True)  # (*batch, 1, candidates)
        share = best == torch.arange(num_kept, device=logits.device).unsqueeze(-1)
        if real_centre is not None:
            share = share & real_centre
        if logits.requires_grad:
            share = straight_through(share, masked_softmax(logits, real_centre, dim=-2))
    else:
        share = masked_softmax(logits, real_centre, dim=-2)
    assignment = torch.where(is_centre, own.to(share.dtype), share).float()
    return assignment if mask is None else assignment.masked_fill(~mask.unsqueeze(-2), 0.0)


def _owned(logits: Tensor, centres: Tensor, mask: Tensor | None) -> Tensor:
    """The hard form without padding and gradient: one pass over all pairs."""
    kept = torch.arange(logits.shape[-2], device=logits.device)
    owner = logits.float().argmax(dim=-2)  # (*batch, candidates)
    owner = owner.scatter(-1, centres.long(), kept.expand(centres.shape)).unsqueeze(-2)
    share = owner == kept.unsqueeze(-1)
    return (share if mask is None else share & mask.unsqueeze(-2)).float()


def fold(
    values: Float[Tensor, "*batch candidates dim"],
    assignment: Float[Tensor, "*batch kept candidates"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch kept dim"]:
    """Weighted means: `y_j = sum_i A_ji x_i / sum_i A_ji`; a row without weight gives zeros.

    Accumulates in float32 and returns the dtype of `values`. With `mask`, masked candidates are not
    read.

    >>> fold(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([[2.]])
    """
    if mask is not None:
        values = values.masked_fill(~mask.unsqueeze(-1), 0.0)
    weights = _normalised(assignment.float(), dim=-1)
    return (weights @ values.float()).to(values.dtype)


def unfold(
    values: Float[Tensor, "*batch kept dim"],
    assignment: Float[Tensor, "*batch kept candidates"],
) -> Float[Tensor, "*batch candidates dim"]:
    """Copy kept values back: `x_i = sum_j A_ji y_j / sum_j A_ji`; zeros where i was dropped.

    Under a hard assignment every candidate gets exactly the value it was merged into.

    >>> unfold(torch.tensor([[2.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([[2.],
            [2.],
            [0.]])
    """
    weights = _normalised(assignment.float(), dim=-2)
    return (weights.transpose(-1, -2) @ values.float()).to(values.dtype)


def _normalised(weights: Tensor, dim: int) -> Tensor:
    total = weights.sum(dim, keepdim=True)
    return weights / total.clamp_min(torch.finfo(total.dtype).tiny)  # 0 / tiny is 0
