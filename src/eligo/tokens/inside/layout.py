"""Which columns a layer sees, and masks and rotary tables that follow, gathered, never rebuilt.

Spec: "Stage 2". All indices count columns of layer 0 (what enters the language model). A row that
kept fewer columns than its batch mates is aligned to the right and padded with -1 on the left:
padding is ANDed into the mask, and a padded query still sees itself, so that no row is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """What some layers in a row see of the prompt."""

    index: Int[Tensor, "batch width"] | None
    """Columns of layer 0; None: all of them."""
    images: Int[Tensor, "images tokens"]
    """Columns of the vision tokens, as this layout counts them; -1 pads."""
    positions: Int[Tensor, "images tokens"]
    """Raster index of each token in its image's grid."""
    sizes: Float[Tensor, "images tokens"] | None
    """How many tokens each one stands for; None: one each."""
    counts: Sequence[int]
    """Tokens per image, known without asking the device."""
    lengths: Sequence[int]
    """Columns per row, known without asking the device."""
    rows: Int[Tensor, " images"]
    """Row of the batch of each image."""
    key_bias: Float[Tensor, "images tokens"] | None = None
    """What attention adds to the logits of these keys."""

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.lengths)

    @cached_property
    def width(self) -> int:
        """Columns of the longest row."""
        return max(self.lengths)

    @cached_property
    def ragged(self) -> bool:
        """Whether some row is shorter."""
        return min(self.lengths) < self.width

    @cached_property
    def valid(self) -> Bool[Tensor, "batch width"] | None:
        """Which columns are real, where some are not."""
        return None if self.index is None or not self.ragged else self.index >= 0

    @cached_property
    def column_bias(self) -> Float[Tensor, "batch width"] | None:
        """`key_bias` spread over the columns."""
        if self.key_bias is None:
            return None
        return spread(self.key_bias, self.images, self.rows, self.batch, self.width)

    def repeated(self, times: int) -> "Layout":
        """For a batch in which every row became `times` rows (beams): as decoding needs it."""
        if times == 1:
            return self
        shift = torch.arange(times, device=self.rows.device)
        rows = (self.rows[:, None] * times + shift).flatten()
        pick = torch.arange(len(self.rows), device=self.rows.device).repeat_interleave(times)
        return Layout(
            index=None if self.index is None else self.index.repeat_interleave(times, 0),
            images=self.images[pick],
            positions=self.positions[pick],
            sizes=None if self.sizes is None else self.sizes[pick],
            counts=[count for count in self.counts for _ in range(times)],
            lengths=[length for length in self.lengths for _ in range(times)],
            rows=rows,
            key_bias=None if self.key_bias is None else self.key_bias[pick],
        )


def take(
    values: Shaped[Tensor, "..."], index: Int[Tensor, "batch kept"], *, ragged: bool = True
) -> Shaped[Tensor, "..."]:
    """`batch length *features` at `index`; zeros at -1 (`ragged`); a batch axis of 1 broadcasts.

    The index follows the values: with a `device_map` these live where their layer does.
    """
    index = index.to(values.device)
    values = values.expand(len(index), *values.shape[1:])
    picked = values[torch.arange(len(index), device=index.device)[:, None], index.clamp_min(0)]
    if not ragged:
        return picked
    return picked.masked_fill((index < 0).reshape(*index.shape, *[1] * (values.ndim - 2)), 0)


def take_last(
    values: Shaped[Tensor, "..."], index: Int[Tensor, "batch kept"]
) -> Shaped[Tensor, "... kept"]:
    """Position ids, `(axes) batch length` or one row for all, at `index`; column 0 at -1."""
    index = index.to(values.device).clamp_min(0)
    index = index.expand(*values.shape[:-2], *index.shape)
    return values.expand(*values.shape[:-2], index.shape[-2], -1).gather(-1, index)


def take_rotary(
    tables: tuple[Tensor, Tensor], index: Int[Tensor, "batch kept"]
) -> tuple[Tensor, Tensor]:
    """cos and sin, `(axes) batch length dim`: mRoPE may have a leading axis."""

    def one(table: Tensor) -> Tensor:
        if table.ndim == 3:
            return take(table, index)
        return torch.stack([take(axis, index) for axis in table])

    return one(tables[0]), one(tables[1])


def spread(
    values: Shaped[Tensor, "images tokens"],
    columns: Int[Tensor, "images tokens"],
    rows: Int[Tensor, " images"],
    batch: int,
    width: int,
) -> Shaped[Tensor, "batch width"]:
    """Values of vision tokens at their columns, zeros elsewhere."""
    # One column more, which takes the padding and is cut off.
    slots = torch.where(columns < 0, width, columns)
    empty = values.new_zeros((batch, width + 1))
    rows = rows[:, None].expand(slots.shape)
    return empty.index_put((rows, slots), values, accumulate=False)[:, :width]


def inverse(index: Int[Tensor, "batch kept"], length: int) -> Int[Tensor, "batch length"]:
    """Where each of `length` columns went; -1 if it was dropped."""
    slots = torch.where(index < 0, length, index)
    places = torch.arange(index.shape[-1], device=index.device).expand(index.shape)
    return index.new_full((index.shape[0], length + 1), -1).scatter(-1, slots, places)[:, :length]


def prompt_mask(
    mask: Tensor | None, layout: Layout, length: int, like: Tensor, *, flat: bool
) -> Tensor | None:
    """The host's mask for `length` columns of layer 0, for a layer that sees `layout`.

    `flat`: the attention takes masks of keys only (flash attention). None stays None (causal)
    unless padding or a bias has to be said.
    """
    index, bias = layout.index, layout.column_bias
    if mask is not None and index is not None:
        mask = take(mask, index) if mask.ndim == 2 else _take_square(mask, index)
    if flat:
        if layout.valid is None:
            return mask
        valid = layout.valid.to(like.device)
        return valid if mask is None else mask.bool() & valid
    if mask is None and layout.valid is None and bias is None:
        return None
    if mask is None:
        size = layout.width if index is not None else length
        mask = torch.ones((size, size), dtype=torch.bool, device=like.device).tril()[None, None]
    if layout.valid is not None:
        valid = layout.valid.to(mask.device)
        own = (
            torch.eye(layout.width, dtype=torch.bool, device=mask.device) & ~valid[:, None, :, None]
        )
        mask = _hide(mask, ~valid[:, None, None, :])
        mask = _show(mask, own)
    return mask if bias is None else add_bias(mask, bias.to(mask.device)[:, None, None], like)


def later_mask(
    mask: Tensor | None,
    layout: Layout,
    length: int,
    later: int,
    like: Tensor,
    *,
    flat: bool,
) -> Tensor | None:
    """The mask of queries after the prompt: the layer's columns of it, then all `later` ones.

    `length`: columns of the prompt at layer 0; `later`: columns after it, queries included.
    """
    index, bias, valid = layout.index, layout.column_bias, layout.valid
    num_queries = like.shape[1]
    if mask is not None and index is not None:
        old, new = mask[..., :length], mask[..., length:]
        if mask.ndim == 4:
            clamped = index.to(mask.device).clamp_min(0)[:, None, None]
            clamped = clamped.expand(-1, *mask.shape[1:3], -1)
            old = old.expand(len(clamped), -1, -1, -1).gather(-1, clamped)
        else:
            old = take(old, index)
        mask = torch.cat([old, new.expand(len(old), *new.shape[1:])], dim=-1)
    if mask is None and valid is None and bias is None and (num_queries == 1 or flat):
        return None
    if valid is not None:
        valid = torch.nn.functional.pad(valid.to(like.device), (0, later), value=True)
        if flat:
            return valid if mask is None else mask.bool() & valid
    if flat:
        return mask
    if mask is None:
        # With a filled cache, SDPA would read "no mask" as causal from the first key on.
        keys = layout.width + later
        mask = torch.ones((num_queries, keys), dtype=torch.bool, device=like.device)
        mask = mask.tril(keys - num_queries)[None, None]
    if valid is not None:
        mask = _hide(mask, ~valid[:, None, None, :].to(mask.device))
    if bias is None:
        return mask
    bias = torch.nn.functional.pad(bias.to(mask.device), (0, later))
    return add_bias(mask, bias[:, None, None], like)


def add_bias(
    mask: Shaped[Tensor, "..."], bias: Float[Tensor, "..."], like: Tensor
) -> Float[Tensor, "..."]:
    """A float mask with `bias` where the mask shows a key, and the lowest number elsewhere.

    Filled, not added: twice the lowest number is -inf, and a row of it NaN.
    """
    lowest = torch.finfo(like.dtype).min
    if mask.dtype == torch.bool:
        return torch.where(mask, bias.to(like.dtype), lowest)
    return torch.where(mask > lowest / 2, mask + bias.to(mask.dtype), lowest)


def _take_square(mask: Tensor, index: Tensor) -> Tensor:
    """Queries and keys of a 4-D mask."""
    index = index.to(mask.device).clamp_min(0)
    batch, kept = index.shape
    mask = mask.expand(batch, -1, -1, -1)
    heads, keys = mask.shape[1], mask.shape[3]
    mask = mask.gather(2, index[:, None, :, None].expand(batch, heads, kept, keys))
    return mask.gather(3, index[:, None, None, :].expand(batch, heads, kept, kept))


def _hide(mask: Tensor, hidden: Tensor) -> Tensor:
    lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    mask, hidden = torch.broadcast_tensors(mask, hidden)
    return mask.masked_fill(hidden, lowest)


def _show(mask: Tensor, shown: Tensor) -> Tensor:
    mask, shown = torch.broadcast_tensors(mask, shown)
    return mask.masked_fill(shown, True if mask.dtype == torch.bool else 0.0)
