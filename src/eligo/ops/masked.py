"""Masked reductions, and index tensors in which -1 means "nothing here".

A mask is True where an entry is real. Padding is never read: not even a NaN there reaches a result
or a gradient. A row without a real entry gives zeros. Sums accumulate in float32.

An index tensor `*batch kept` picks from values `*batch candidates *features`; -1 picks zeros.
`align_left` and `align_right` return indices, so that states, positions and masks can all be moved
the same way. `padded=False` promises that no index is -1, which saves a few kernels.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free


def full_mask(
    like: Shaped[Tensor, "*shape"], mask: Bool[Tensor, "*shape"] | None = None
) -> Bool[Tensor, "*shape"]:
    """Return the mask, or one of the shape of `like` that is True everywhere."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def append_axes(tensor: Tensor, num_axes: int) -> Tensor:
    """Append `num_axes` axes of length 1, to broadcast over features."""
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
    return _fill_low(logits, mask).softmax(dim).masked_fill(~mask, 0.0)


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
    """Float32 logits with the lowest finite value in masked entries: with -inf, an empty row
    would be NaN.
    """
    logits = logits.float()
    return torch.where(mask, logits, torch.finfo(logits.dtype).min)


def gather(
    values: Shaped[Tensor, "..."], indices: Int[Tensor, "*batch kept"], *, padded: bool = True
) -> Shaped[Tensor, "..."]:
    """`out[b, j] = values[b, indices[b, j]]`, zeros where the index is -1.

    `values` is `*batch candidates *features`; batch axes of length 1 broadcast, on either side.

    >>> gather(torch.tensor([10.0, 20.0, 30.0]), torch.tensor([2, 0, -1]))
    tensor([30., 10.,  0.])
    """
    dim = indices.ndim - 1
    if values.ndim < indices.ndim:
        raise InputError(
            f"gather: got values of shape {tuple(values.shape)} for indices of shape "
            f"{tuple(indices.shape)}; expected `*batch candidates *features` values for "
            "`*batch kept` indices"
        )
    batch, features = values.shape[:dim], values.shape[dim + 1 :]
    if batch != indices.shape[:-1]:
        try:
            batch = torch.broadcast_shapes(batch, indices.shape[:-1])
        except RuntimeError as error:
            raise InputError(
                f"gather: the batch axes of values {tuple(values.shape)} and of indices "
                f"{tuple(indices.shape)} do not agree; expected the same lengths, or 1"
            ) from error
    shape = (*batch, indices.shape[-1], *features)
    if values.shape[dim] == 0:  # every index is -1
        return values.new_zeros(shape)
    indices = indices.long()
    positions = indices.clamp_min(0) if padded else indices
    positions = append_axes(positions, len(features)).expand(shape)
    picked = values.expand(*batch, *values.shape[dim:]).gather(dim, positions)
    if not padded:
        return picked
    # masked_fill, not a product with 0: candidate 0 may be NaN.
    return picked.masked_fill(append_axes(indices < 0, len(features)), 0)


def kept_mask(
    indices: Int[Tensor, "*batch kept"], num_candidates: int
) -> Bool[Tensor, "*batch candidates"]:
    """True for every candidate in its row of `indices`.

    >>> kept_mask(torch.tensor([2, 0, -1]), 4)
    tensor([ True, False,  True, False])
    """
    # A spare last column takes the -1s.
    slots = indices.long() % (num_candidates + 1)
    mask = slots.new_zeros((*indices.shape[:-1], num_candidates + 1), dtype=torch.bool)
    return mask.scatter(-1, slots, True)[..., :num_candidates]


def align_left(
    mask: Bool[Tensor, "*batch length"], length: int | None = None
) -> Int[Tensor, "*batch new_length"]:
    """Indices that move a row's real entries to its left end, in order; -1 after them.

    `length` is the width of the result (default: the width of `mask`); it must cover the fullest
    row. The caller gives it, so that no device sync is needed.

    >>> align_left(torch.tensor([False, True, False, True]))
    tensor([ 1,  3, -1, -1])
    """
    order, count, length = _order(mask, length)
    padded = torch.nn.functional.pad(order, (0, length - order.shape[-1]), value=-1)
    return torch.where(torch.arange(length, device=mask.device) < count, padded, -1)


def align_right(
    mask: Bool[Tensor, "*batch length"], length: int | None = None
) -> Int[Tensor, "*batch new_length"]:
    """Indices that move a row's real entries to its right end, in order; -1 before them.

    >>> align_right(torch.tensor([True, False, True, False]))
    tensor([-1, -1,  0,  2])
    """
    order, count, length = _order(mask, length)
    positions = torch.arange(length, device=mask.device) - (length - count)
    return gather(order, torch.where(positions < 0, -1, positions)).masked_fill(positions < 0, -1)


def _order(mask: Tensor, length: int | None) -> tuple[Tensor, Tensor, int]:
    """Indices with real entries first, the number of real entries, the width of the result."""
    count = mask.sum(-1, keepdim=True)
    if length is None:
        length = mask.shape[-1]
    elif values_are_free(mask) and count.numel() and int(count.max()) > length:
        raise InputError(
            f"align: got length={length}, but a row has {int(count.max())} real entries; "
            "expected a length that covers the fullest row"
        )
    return mask.logical_not().byte().argsort(dim=-1, stable=True), count, length
