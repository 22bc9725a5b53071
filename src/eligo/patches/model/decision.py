"""Which patches stay: a hard choice that still teaches (the decision matrix D of the paper).

D is 1 for a kept patch and 0 for a dropped one, always exactly; the ways differ in its gradient.

- `straight_through`, our default: `D = keep + q - stopgrad(q)`, `q = sigmoid((s - t) / 0.1)`, where
  t lies between the last kept and the first dropped score. The guide's D is a constant, so its
  predictor learns from the extra token alone.
- `bernoulli`: each patch is drawn with its own probability, so the *number* kept can be learned and
  a loss on it has a gradient. With an exact top-K that loss is a constant: we refuse it there.
- `gumbel`, the documented one (`compat`): noise in the gradient only; what is kept never changes.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.ops._checks import values_are_free

TEMPERATURE = 0.1
_SMALL = 1e-6  # keeps logits of probabilities finite


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
    competes = competes if mask is None else competes & mask
    soft = torch.sigmoid((score - torch.where(threshold.isfinite(), threshold, 0.0)) / TEMPERATURE)
    return ops.straight_through(keep, torch.where(competes, soft, 0.0))


def bernoulli(
    probability: Float[Tensor, "*batch patches"],
    uniform: Float[Tensor, "*batch patches"],
    temperature: float,
    mask: Bool[Tensor, "*#batch patches"] | None = None,
) -> Float[Tensor, "*batch patches"]:
    """`D = [q > 0.5] + q - stopgrad(q)`, `q = sigmoid((logit p + z) / tau)`; at least one stays.

    z is logistic noise made from `uniform` draws, so that the hard part is 1 with probability p.

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


def best(
    score: Float[Tensor, "*batch patches"],
    num_kept: Int[Tensor, "*batch"] | int,
    mask: Bool[Tensor, "*batch patches"] | None = None,
) -> Bool[Tensor, "*batch patches"]:
    """The exact top-K of the real patches, ties to the lowest index."""
    if isinstance(num_kept, int) and mask is None and values_are_free(score):
        # Selecting the K-th is several times faster than sorting K; ties are rare and sorted out.
        last = score.detach().kthvalue(score.shape[-1] - num_kept + 1, dim=-1, keepdim=True).values
        keep = score >= last
        if bool((keep.sum(-1) == num_kept).all()):
            return keep
    return ops.top_k_mask(score, num_kept, mask)
