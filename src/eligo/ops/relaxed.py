"""A differentiable top-k, and hard masks that learn through it.

The relaxed top-k keeps candidate j with probability `p_j = sigmoid((s_j - tau) / T)`, where the
threshold tau makes the probabilities of a row sum to k: as T -> 0 it becomes the hard top-k.
It is the entropy-regularised top-k of a polytope with box constraints (Lapin et al. 2015;
Amos et al. 2019, "The Limited Multi-Label Projection Layer"). tau comes from a bisection without
gradient and one differentiable Newton step, whose gradient is the one of the implicit function
`sum_j p_j = k`: a raised score lowers the probability of all its competitors.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.ops.topk import top_k_mask

# The bracket shrinks 2^32-fold, below the float32 spacing of any sensible score.
_NUM_BISECTIONS = 32


def relaxed_top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    temperature: float,
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """`p_j = sigmoid((s_j - tau) / T)` with `sum_j p_j = k`, in float32.

    A row with k or fewer real candidates keeps them all, p = 1; masked candidates have p = 0.
    For the noisy form of training, add `gumbel_noise(scores) * T / T_start` to the scores.

    >>> relaxed_top_k(torch.tensor([2.0, 1.0, 0.0]), 1, 0.5).round(decimals=3)
    tensor([0.7090, 0.2480, 0.0430])
    """
    if not temperature > 0:
        raise InputError(f"relaxed_top_k: got temperature={temperature}; expected a value > 0")
    scores = scores.float()
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    if scores.shape[-1] == 0:
        return scores
    count = mask.sum(-1, keepdim=True)
    budget = torch.full_like(count, k) if isinstance(k, int) else k.unsqueeze(-1)
    # Rows in which nothing competes are answered below; here they only have to stay finite.
    competes = (budget > 0) & (budget < count)
    # Differences to the best, so that a large common offset costs no precision.
    best = torch.where(mask, scores, -torch.inf).amax(-1, keepdim=True).detach()
    logits = torch.where(mask & competes, (scores - best) / temperature, 0.0)
    target = torch.where(competes, budget, 1).float()

    centred = logits - _threshold(logits.detach(), mask, target, count)
    p = centred.sigmoid().masked_fill(~mask, 0.0)
    slope = (p * (-centred).sigmoid()).sum(-1, keepdim=True).detach()
    step = (p.sum(-1, keepdim=True) - target) / slope.clamp_min(1e-20)
    p = (centred - step).sigmoid()
    return torch.where(competes, p, (budget > 0).float()).masked_fill(~mask, 0.0)


def straight_through(
    hard: Bool[Tensor, "*shape"] | Float[Tensor, "*shape"], soft: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """`hard + (soft - stopgrad(soft))`: exactly the hard values, the gradient of the soft ones.

    >>> straight_through(torch.tensor([True, False]), torch.tensor([0.7, 0.3]))
    tensor([1., 0.])
    """
    # The brackets matter: (hard + soft) - soft would round.
    return hard.to(soft.dtype) + (soft - soft.detach())


def straight_through_top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    temperature: float,
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """The exact top-k as a mask of 0s and 1s, with the gradient of `relaxed_top_k`.

    >>> straight_through_top_k(torch.tensor([2.0, 1.0, 0.0]), 1, 0.5)
    tensor([1., 0., 0.])
    """
    return straight_through(
        top_k_mask(scores, k, mask), relaxed_top_k(scores, k, temperature, mask)
    )


@torch.no_grad()
def _threshold(logits: Tensor, mask: Tensor, target: Tensor, count: Tensor) -> Tensor:
    """tau / T by bisection: (*batch, 1)."""
    # If all logits were equal to c, tau would be c - logit(k / n): that brackets the root.
    shift = torch.logit(target / count.clamp_min(1))
    low = torch.where(mask, logits, torch.inf).amin(-1, keepdim=True) - shift
    high = torch.where(mask, logits, -torch.inf).amax(-1, keepdim=True) - shift
    low, high = low.nan_to_num(0.0, 0.0, 0.0), high.nan_to_num(0.0, 0.0, 0.0)
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        total = (logits - middle).sigmoid().masked_fill(~mask, 0.0).sum(-1, keepdim=True)
        too_many = total > target
        low = torch.where(too_many, middle, low)
        high = torch.where(too_many, high, middle)
    return (low + high) / 2
