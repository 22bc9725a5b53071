"""Exact top-k with ties to the lowest index, random and differentiable top-k.

`torch.topk` breaks ties differently on each device. Short rows without a mask are therefore sorted,
stably. For others, each float32 score and its index become one integer that orders by score, then
by lowest index, so that there are no ties. `gumbel_top_k` draws without replacement from
`softmax(scores)` (Kool et al. 2019, "Stochastic Beams").

The relaxed top-k keeps candidate j with probability `p_j = sigmoid((s_j - tau) / T)`, where the
threshold tau makes the probabilities of a row sum to k; as T -> 0 it becomes the hard top-k. It is
the entropy-regularised top-k of a polytope with box constraints (Lapin et al. 2015; Amos et al.
2019, "The Limited Multi-Label Projection Layer"). tau comes from a bisection without gradient and
one differentiable Newton step, whose gradient is that of the implicit function `sum_j p_j = k`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.ops.masked import full_mask, kept_mask

# The bracket shrinks 2^32-fold, below the float32 spacing of any sensible score.
_NUM_BISECTIONS = 32
_SHORT = 4096  # candidates; longer rows are slow to sort


def top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
) -> Int[Tensor, "*batch kept"]:
    """Indices of the k best real candidates of every row, best first, padded with -1.

    `k` is one budget for all rows, which is also the width of the result; or one per row, and then
    `width` is the width of the result (default: the largest budget, which costs a device sync).
    Scores are compared in float32; a NaN ranks below every number.

    >>> top_k(torch.tensor([1.0, 3.0, 3.0, 2.0]), 2)
    tensor([1, 2])
    """
    num_candidates = scores.shape[-1]
    width = budget_width("top_k", k, width, num_candidates)
    if mask is None and num_candidates <= _SHORT:
        order = _comparable(scores).sort(dim=-1, descending=True, stable=True).indices
        indices = order[..., :width]
    else:
        keys = _ordered_integers(scores)
        if mask is not None:
            keys = keys.masked_fill(~mask, torch.iinfo(torch.int64).min)
        indices = keys.topk(min(width, num_candidates), dim=-1).indices
    if mask is None and isinstance(k, int) and width <= num_candidates:
        return indices
    indices = torch.nn.functional.pad(indices, (0, width - indices.shape[-1]), value=-1)
    limit = k if isinstance(k, int) else k.to(scores.device, non_blocking=True).unsqueeze(-1)
    if mask is not None:
        limit = mask.sum(-1, keepdim=True).clamp_max(limit)
    return torch.where(torch.arange(width, device=scores.device) < limit, indices, -1)


def top_k_mask(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Bool[Tensor, "*batch candidates"]:
    """True for the k best real candidates of every row; no device sync.

    >>> top_k_mask(torch.tensor([1.0, 3.0, 3.0, 2.0]), 2)
    tensor([False,  True,  True, False])
    """
    num_candidates = scores.shape[-1]
    width = None if isinstance(k, int) else num_candidates
    return kept_mask(top_k(scores, k, mask, width=width), num_candidates)


def gumbel_noise(
    like: Float[Tensor, "*shape"], generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise `-log(-log(u))`, float32, in the shape and on the device of `like`.

    >>> gumbel_noise(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    exponential = torch.empty_like(like, dtype=torch.float32).exponential_(generator=generator)
    return -exponential.clamp_min(torch.finfo(torch.float32).tiny).log()


def gumbel_top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*batch kept"]:
    """`top_k(scores + g)`: k candidates drawn without replacement, by `softmax(scores)`.

    >>> gumbel_top_k(torch.tensor([0.0, 100.0, 0.0]), 1)
    tensor([1])
    """
    noisy = scores.float() + gumbel_noise(scores, generator)
    return top_k(noisy, k, mask, width=width)


def relaxed_top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    temperature: float,
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """`p_j = sigmoid((s_j - tau) / T)` with `sum_j p_j = k`, in float32.

    A row with k or fewer real candidates keeps them all, p = 1; masked candidates have p = 0.
    To train with noise, add `gumbel_noise(scores) * T / T_start` to the scores.

    >>> relaxed_top_k(torch.tensor([2.0, 1.0, 0.0]), 1, 0.5).round(decimals=3)
    tensor([0.7090, 0.2480, 0.0430])
    """
    if not temperature > 0:
        raise InputError(f"relaxed_top_k: got temperature={temperature}; expected a value > 0")
    scores = scores.float()
    mask = full_mask(scores, mask)
    if scores.shape[-1] == 0:
        return scores
    count = mask.sum(-1, keepdim=True)
    budget = torch.full_like(count, k) if isinstance(k, int) else k.unsqueeze(-1)
    # Rows that keep all or nothing are filled in below; here they only need finite values.
    competes = (budget > 0) & (budget < count)
    # Relative to the best score, so that a large common offset costs no precision.
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
    # In this order: (hard + soft) - soft would round.
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


def budget_width(caller: str, k: int | Tensor, width: int | None, num_candidates: int) -> int:
    """Return the width of a result with these budgets; errors name the caller."""
    if isinstance(k, int):
        if k < 0 or width not in (None, k):
            raise InputError(
                f"{caller}: got k={k}, width={width}; expected k >= 0, and width only where k is a "
                "tensor with one budget per row"
            )
        return k
    if values_are_free(k) and k.numel():
        low, high = int(k.min()), int(k.max())
        if low < 0 or (width is not None and width < min(high, num_candidates)):
            raise InputError(
                f"{caller}: got budgets from {low} to {high} and width={width}; expected budgets "
                ">= 0 and a width that covers them"
            )
    if width is None:
        width = int(k.max()) if k.numel() else 0
    return width


def _comparable(scores: Tensor) -> Tensor:
    """float32, with NaN as -inf and -0.0 as 0.0."""
    return scores.detach().float().nan_to_num(float("-inf"), float("inf"), float("-inf")) + 0.0


def _ordered_integers(scores: Tensor) -> Tensor:
    """int64 keys: larger for a better score; for equal scores, larger for a lower index."""
    bits = _comparable(scores).view(torch.int32)
    # Bits of positive floats order like integers, those of negative ones in reverse.
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    index = torch.arange(scores.shape[-1], device=scores.device)
    return (order.long() << 32) + (scores.shape[-1] - index)


@torch.no_grad()
def _threshold(logits: Tensor, mask: Tensor, target: Tensor, count: Tensor) -> Tensor:
    """tau / T by bisection: (*batch, 1)."""
    # If all logits were equal to c, tau would be c - logit(k / n), which brackets the root.
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
