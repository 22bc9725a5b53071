"""Formulas shared by all parts of `patches`: cosines, softmax with weights, the decision D.

Half precision is for storing and multiplying vectors; ranks, weights and norms are computed in
float32 (float64 stays float64).

The decision matrix D of SEPS is exactly 1 for a kept patch and 0 for a dropped one. Its gradient
differs:

- `straight_through` (default): `D = keep + q - stopgrad(q)`, `q = sigmoid((s - t) / 0.1)`, where t
  lies between the last kept and the first dropped score. In the published network D is a constant,
  so its predictor learns from the extra token alone.
- `bernoulli`: each patch is drawn with its own probability, so the *number* of kept patches can be
  learned. With an exact top-K a loss on that number would be constant, and is an error.
- `gumbel` (`compat`): noise in the gradient only; the kept patches never change.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.ops._checks import values_are_free

# e^46 = 1e20: largest weight of a dropped patch relative to the best kept one, in gradients only.
LARGEST_EXPONENT = 46.0
DECISION_TEMPERATURE = 0.1
_SMALL = 1e-6  # keeps logits of probabilities finite


def wide(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert half precision to float32; wider types are returned unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def unit(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """`x / max(|x|_2, 1e-12)`.

    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    return F.normalize(wide(vectors), dim=-1, eps=1e-12)


def mean_patch(
    patches: Float[Tensor, "images patches dim"], mask: Bool[Tensor, "images patches"] | None
) -> Float[Tensor, "images dim"]:
    """Return the mean of the real patches of each image, in at least float32."""
    patches = wide(patches)
    return patches.mean(1) if mask is None else ops.masked_mean(patches, mask)


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
    """`d_i e^l_i / sum_j d_j e^l_j`; a row without weight gives zeros.

    With weights of 0 and 1 it is the masked softmax, except that a weight of 0 keeps its gradient:
    a straight-through decision can learn that a dropped patch should have been kept.

    >>> weighted_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    best = torch.where(weights > 0, logits, -torch.inf).amax(-1, keepdim=True).detach()
    best = torch.where(best.isfinite(), best, 0.0)
    powers = weights * (logits - best).clamp_max(LARGEST_EXPONENT).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def straight_through(
    score: Float[Tensor, "*batch patches"],
    keep: Bool[Tensor, "*batch patches"],
    mask: Bool[Tensor, "*#batch patches"] | None = None,
) -> Float[Tensor, "*batch patches"]:
    """`keep` with the gradient of a sigmoid around the threshold; constant where none is dropped.

    >>> score = torch.tensor([0.9, 0.2, 0.5])
    >>> straight_through(score, ops.top_k_mask(score, 2))
    tensor([1., 0., 1.])
    """
    dropped = ~keep if mask is None else ~keep & mask
    with torch.no_grad():
        last = torch.where(keep, score, torch.inf).amin(-1, keepdim=True)
        following = torch.where(dropped, score, -torch.inf).amax(-1, keepdim=True)
        threshold = (last + following) / 2
    competes = threshold.isfinite()
    centre = torch.where(competes, threshold, 0.0)
    competes = competes if mask is None else competes & mask
    soft = torch.sigmoid((score - centre) / DECISION_TEMPERATURE)
    return ops.straight_through(keep, torch.where(competes, soft, 0.0))


def bernoulli(
    probability: Float[Tensor, "*batch patches"],
    uniform: Float[Tensor, "*batch patches"],
    temperature: float,
    mask: Bool[Tensor, "*#batch patches"] | None = None,
) -> Float[Tensor, "*batch patches"]:
    """`D = [q > 0.5] + q - stopgrad(q)`, `q = sigmoid((logit p + z) / tau)`; keeps at least one.

    z is logistic noise computed from `uniform`, so that D is 1 with probability p.

    >>> bernoulli(torch.tensor([0.9, 0.2]), torch.tensor([0.5, 0.5]), 1.0)
    tensor([1., 0.])
    """
    uniform = uniform.clamp(_SMALL, 1 - _SMALL)
    noise = torch.log(uniform) - torch.log1p(-uniform)
    soft = torch.sigmoid((torch.logit(probability, eps=_SMALL) + noise) / temperature)
    hard = soft > 0.5
    hard = hard if mask is None else hard & mask
    hard = hard | (ops.top_k_mask(soft, 1, mask) & ~hard.any(-1, keepdim=True))
    soft = soft if mask is None else torch.where(mask, soft, 0.0)
    return ops.straight_through(hard, soft)


def gumbel(
    score: Float[Tensor, "*batch patches"],
    keep: Bool[Tensor, "*batch patches"],
    uniform: Float[Tensor, "*batch patches"],
    temperature: float,
) -> Float[Tensor, "*batch patches"]:
    """`keep + (q - stopgrad(q))`, `q = softmax((s + g) / tau)`, `g = -log(-log(u + e) + e)`."""
    noise = -torch.log(-torch.log(uniform + 1e-9) + 1e-9)
    return ops.straight_through(keep, torch.softmax((score + noise) / temperature, -1))


def exact_top_k(
    score: Float[Tensor, "*batch patches"],
    num_kept: Int[Tensor, "*batch"] | int,
    mask: Bool[Tensor, "*batch patches"] | None = None,
) -> Bool[Tensor, "*batch patches"]:
    """Return a mask of the K best real patches; ties go to the lowest index."""
    if isinstance(num_kept, int) and mask is None and values_are_free(score):
        # `kthvalue` is several times faster than sorting; ties are rare and handled below.
        last = score.detach().kthvalue(score.shape[-1] - num_kept + 1, dim=-1, keepdim=True).values
        keep = score >= last
        if bool((keep.sum(-1) == num_kept).all()):
            return keep
    return ops.top_k_mask(score, num_kept, mask)
