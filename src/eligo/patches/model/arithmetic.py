"""The few formulas that every part of `patches` shares, in at least float32.

Half precision is for storing and multiplying vectors; what ranks, weighs or normalises is
computed in float32 (float64 stays float64).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

# e^46 = 1e20: what a dropped patch may weigh relative to the best kept one, in gradients only.
LARGEST_EXPONENT = 46.0


def wide(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Half precision as float32; anything wider as it is."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def unit(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """`x / max(|x|_2, 1e-12)`.

    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    return F.normalize(wide(vectors), dim=-1, eps=1e-12)


def min_max(
    values: Float[Tensor, "*batch patches"], mask: Bool[Tensor, "*#batch patches"] | None = None
) -> Float[Tensor, "*batch patches"]:
    """`(a - min a) / (max a - min a + 1e-8)` of every row, over its real patches.

    >>> min_max(torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    low = values if mask is None else torch.where(mask, values, torch.inf)
    high = values if mask is None else torch.where(mask, values, -torch.inf)
    low, high = low.amin(-1, keepdim=True), high.amax(-1, keepdim=True)
    scaled = (values - low) / (high - low + 1e-8)
    return scaled if mask is None else torch.where(mask, scaled, 0.0)


def weighted_softmax(
    logits: Float[Tensor, "*#batch items"], weights: Float[Tensor, "*#batch items"]
) -> Float[Tensor, "*#batch items"]:
    """`d_i e^l_i / sum_j d_j e^l_j`: a softmax over what has weight; an empty row gives zeros.

    With weights of 0 and 1 it is the masked softmax, but a weight of 0 keeps its gradient: a
    straight-through decision can learn that a dropped patch should have been kept.

    >>> weighted_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    best = torch.where(weights > 0, logits, -torch.inf).amax(-1, keepdim=True).detach()
    best = torch.where(best.isfinite(), best, 0.0)
    powers = weights * (logits - best).clamp_max(LARGEST_EXPONENT).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)
