"""Reductions over the real entries of padded tensors.

Padding is an explicit boolean mask (True = real), never guessed from zeros, and what stands in
padding is never read: not even a NaN there reaches the result or a gradient. A row without a
single real entry gives zeros (the plain formulas give 0/0). Sums accumulate in float32.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.errors import InputError


def append_axes(tensor: Tensor, num_axes: int) -> Tensor:
    """`tensor` with `num_axes` axes of length 1 at its end, to broadcast over features."""
    return tensor.reshape(*tensor.shape, *[1] * num_axes)


def masked_softmax(
    logits: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, dim: int = -1
) -> Float[Tensor, "..."]:
    """Softmax over the real entries of `dim`, in float32; masked entries and empty rows are 0.

    `p_i = mask_i exp(l_i) / sum_j mask_j exp(l_j)`. `mask` broadcasts against `logits`.

    >>> masked_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    if mask is None:
        return logits.float().softmax(dim)
    # A finite fill: with -inf an empty row would be NaN, in its gradient too.
    filled = _fill_low(logits, mask)
    return filled.softmax(dim).masked_fill(~mask, 0.0)


def masked_log_softmax(
    logits: Float[Tensor, "..."], mask: Bool[Tensor, "..."] | None = None, dim: int = -1
) -> Float[Tensor, "..."]:
    """Logarithm of `masked_softmax`, in float32: -inf at masked entries.

    Fill the masked entries before multiplying by a zero weight (0 * -inf is NaN).
    """
    if mask is None:
        return logits.float().log_softmax(dim)
    return _fill_low(logits, mask).log_softmax(dim).masked_fill(~mask, float("-inf"))


def masked_mean(
    values: Float[Tensor, "..."], mask: Bool[Tensor, "*batch items"]
) -> Float[Tensor, "..."]:
    """Mean over the real items: `sum_i mask_i v_i / sum_i mask_i`; 0 where there is none.

    `values` has the shape of `mask`, then any feature axes; the result loses the items axis and
    keeps the dtype of `values`.

    >>> masked_mean(torch.tensor([[1.0, 3.0, 7.0]]), torch.tensor([[True, True, False]]))
    tensor([2.])
    """
    if values.shape[: mask.ndim] != mask.shape:
        raise InputError(
            f"masked_mean: got values of shape {tuple(values.shape)} and a mask of shape "
            f"{tuple(mask.shape)}; expected values to begin with the mask's shape"
        )
    dim = mask.ndim - 1
    weights = append_axes(mask, values.ndim - mask.ndim)
    total = torch.where(weights, values, 0).float().sum(dim)
    count = weights.sum(dim).clamp_min(1)
    return (total / count).to(values.dtype)


def _fill_low(logits: Tensor, mask: Tensor) -> Tensor:
    """Float32 logits with masked entries so low that exp gives exactly 0 beside any real one."""
    logits = logits.float()
    return torch.where(mask, logits, torch.finfo(logits.dtype).min)
