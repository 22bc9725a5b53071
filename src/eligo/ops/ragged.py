"""Picking and packing ragged rows with index tensors, where -1 means "nothing here".

One convention for all: an index tensor is `*batch kept`, the values it picks from are
`*batch candidates *features`, and a picked -1 gives zeros. The axis is the one after the batch
axes, so no `dim` argument can be wrong. `align_left` and `align_right` return such indices
rather than moved values, so that hidden states, rotary tables and masks can all move alike.
Where a caller knows that no index is -1, `padded=False` spares the kernels that look for it.
"""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.ops.masked import append_axes


def gather(
    values: Shaped[Tensor, "..."], indices: Int[Tensor, "*batch kept"], *, padded: bool = True
) -> Shaped[Tensor, "..."]:
    """`out[b, j] = values[b, indices[b, j]]`, zeros where the index is -1 (`padded`).

    `values` is `*batch candidates *features`; batch axes of length 1 broadcast, on either side.
    Indices must lie in `[-1, candidates)`.

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
    if values.shape[dim] == 0:  # nothing to pick from: every index can only be -1
        return values.new_zeros(shape)
    indices = indices.long()
    positions = indices.clamp_min(0) if padded else indices
    positions = append_axes(positions, len(features)).expand(shape)
    picked = values.expand(*batch, *values.shape[dim:]).gather(dim, positions)
    if not padded:
        return picked
    # Filled rather than multiplied by 0: candidate 0 may hold a NaN.
    return picked.masked_fill(append_axes(indices < 0, len(features)), 0)


def kept_mask(
    indices: Int[Tensor, "*batch kept"], num_candidates: int
) -> Bool[Tensor, "*batch candidates"]:
    """True for every candidate that stands in its row of `indices`.

    >>> kept_mask(torch.tensor([2, 0, -1]), 4)
    tensor([ True, False,  True, False])
    """
    # One column more, which takes the -1s (the last, counted from the end) and is cut off.
    slots = indices.long() % (num_candidates + 1)
    mask = slots.new_zeros((*indices.shape[:-1], num_candidates + 1), dtype=torch.bool)
    return mask.scatter(-1, slots, True)[..., :num_candidates]


def align_left(
    mask: Bool[Tensor, "*batch length"], length: int | None = None
) -> Int[Tensor, "*batch new_length"]:
    """Indices that move a row's real entries to its left end, in order; -1 behind them.

    `length` is the width of the result, known to the caller (a grid, a budget), so that no
    device sync is needed; it must cover the fullest row. Default: the width of `mask`.

    >>> align_left(torch.tensor([False, True, False, True]))
    tensor([ 1,  3, -1, -1])
    """
    order, count, length = _order(mask, length)
    columns = torch.arange(length, device=mask.device)
    return torch.where(columns < count, _resize(order, length), -1)


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
    """Real entries first, in order; how many there are; the width of the result."""
    count = mask.sum(-1, keepdim=True)
    if length is None:
        length = mask.shape[-1]
    elif values_are_free(mask) and count.numel() and int(count.max()) > length:
        raise InputError(
            f"align: got length={length}, but a row has {int(count.max())} real entries; "
            "expected a length that covers the fullest row"
        )
    return mask.logical_not().byte().argsort(dim=-1, stable=True), count, length


def _resize(order: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(order, (0, length - order.shape[-1]), value=-1)
