"""Exact budgets: the k best real candidates, ties to the lowest index.

`torch.topk` breaks ties as it likes, differently on each device. Short rows without padding are
sorted, stably: one kernel after another costs more than their work. A stable sort of a million
candidates is slow: there, each float32 score and its index become one integer that orders by
score, then by lowest index; all integers differ, so `torch.topk` has no choice left. The Gumbel
form draws without replacement from `softmax(scores)` (Kool et al. 2019, "Stochastic Beams").
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.ops.ragged import kept_mask

_SHORT = 4096  # candidates of a row that is sorted


def top_k(
    scores: Float[Tensor, "*batch candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
) -> Int[Tensor, "*batch kept"]:
    """Indices of the k best real candidates of every row, best first, padded with -1.

    `k` is one budget for all rows, and then the width of the result; or one per row, and then
    `width` says how wide the result is (default: the largest budget, which costs a device sync
    on CUDA). Scores are compared in float32; a NaN ranks below everything real.

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
    """True for the k best real candidates of every row: `top_k` as a mask, without a sync.

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


def budget_width(caller: str, k: int | Tensor, width: int | None, num_candidates: int) -> int:
    """How wide a result with these budgets is; names the caller where they cannot be."""
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
    """float32, NaN as -inf."""
    # + 0.0 makes -0.0 equal to 0.0, as it is in a comparison.
    return scores.detach().float().nan_to_num(float("-inf"), float("inf"), float("-inf")) + 0.0


def _ordered_integers(scores: Tensor) -> Tensor:
    """int64 keys: larger for a better score; for equal scores, larger for a lower index."""
    bits = _comparable(scores).view(torch.int32)
    # The bits of positive floats order like integers, those of negative ones in reverse.
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    index = torch.arange(scores.shape[-1], device=scores.device)
    return (order.long() << 32) + (scores.shape[-1] - index)
