"""Which columns a layer sees, and masks and rotary tables that follow, gathered, never rebuilt.

Spec: "Stage 2". All indices count columns of layer 0 (what enters the language model). A row that
kept fewer columns than its batch mates is aligned to the right and padded with -1 on the left:
padding is ANDed into the mask, and a padded query still sees itself, so that no row is empty.
All layers between two cuts share one layout, and so one mask and one pair of tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from eligo import ops

# SDPA copies masks whose rows are not aligned, in every layer anew.
_ALIGNED = 16
_ROOM = 256  # columns by which the masks of decoding grow


@dataclass(frozen=True, eq=False)
class Layout:
    """What some layers in a row see of the prompt."""

    index: Int[Tensor, "batch width"] | None
    """Columns of layer 0; None: all of them."""
    images: Int[Tensor, "images tokens"]
    """Columns of the vision tokens, as this layout counts them; -1 pads."""
    words: Int[Tensor, "batch words"]
    """Columns of the prompt's text: it is never dropped, but it moves; -1 pads."""
    positions: Int[Tensor, "images tokens"]
    """Raster index of each token in its image's grid."""
    sizes: Float[Tensor, "images tokens"] | None
    """How many tokens each one stands for; None: one each."""
    counts: Sequence[int]
    """Tokens per image, known without asking the device."""
    lengths: Sequence[int]
    """Columns per row, known without asking the device."""
    bias: Float[Tensor, "batch width"] | None = None
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
    def padded(self) -> bool:
        """Whether some image has fewer tokens than others."""
        return min(self.counts) < self.images.shape[-1]

    @cached_property
    def valid(self) -> Bool[Tensor, "batch width"] | None:
        """Which columns are real, where some are not."""
        return None if self.index is None or not self.ragged else self.index >= 0

    @cached_property
    def _grown(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        return {}

    def grown_bias(self, later: int, like: Tensor) -> Float[Tensor, "batch 1 1 keys"] | None:
        """`bias`, then nothing on `later` columns: a view, most steps of decoding make no other."""
        if self.bias is None:
            return None
        key, size = (like.device, like.dtype), self.width + later
        found = self._grown.get(key)
        if found is None or found.shape[-1] < size:
            room = -size % _ROOM + size - self.width
            bias = self.bias.detach().to(like.device, like.dtype)
            found = self._grown[key] = torch.nn.functional.pad(bias, (0, room))
        return found[:, None, None, :size]

    def repeated(self, times: int) -> "Layout":
        """For a batch in which every row became `times` rows (beams): as decoding needs it."""
        return replace(
            self,
            index=None if self.index is None else self.index.repeat_interleave(times, 0),
            words=self.words.repeat_interleave(times, 0),
            lengths=[length for length in self.lengths for _ in range(times)],
            bias=None if self.bias is None else self.bias.repeat_interleave(times, 0),
        )


def arrange(
    words: Int[Tensor, "batch words"],
    images: Int[Tensor, "batch tokens"],
    lengths: Sequence[int],
) -> tuple[
    Int[Tensor, "batch width"], Int[Tensor, "batch width"], Int[Tensor, "batch words_and_tokens"]
]:
    """Columns in order, aligned to the right; from which place each came; where each went.

    Places count words, then tokens. -1 sorts first, so that what is short is padded on the left.
    """
    both = torch.cat([words, images], dim=1)
    spare = both.shape[1] - max(lengths)
    columns, order = both.sort(dim=1, stable=True)
    places = order.argsort(dim=1)
    if min(lengths) < both.shape[1]:
        places = (places - spare).masked_fill(both < 0, -1)
    return columns[:, spare:], order[:, spare:], places


def take(
    values: Shaped[Tensor, "..."], index: Int[Tensor, "batch kept"], *, ragged: bool = True
) -> Shaped[Tensor, "..."]:
    """`batch length *features` at `index`; zeros at -1 (`ragged`); a batch axis of 1 broadcasts.

    The index follows the values: with a `device_map` these live where their layer does.
    """
    return ops.gather(values, index.to(values.device), padded=ragged)


def follow(
    columns: Int[Tensor, "rows columns"], index: Int[Tensor, "rows kept"], *, ragged: bool = True
) -> Int[Tensor, "rows kept"]:
    """`take` for what is an index itself: -1 stays."""
    picked = take(columns, index, ragged=ragged)
    return picked.masked_fill(index.to(picked.device) < 0, -1) if ragged else picked


def take_last(
    values: Shaped[Tensor, "..."], index: Int[Tensor, "batch kept"]
) -> Shaped[Tensor, "... kept"]:
    """Position ids, `(axes) batch length` or one row for all, at `index`; column 0 at -1."""
    index = index.to(values.device).clamp_min(0)
    index = index.expand(*values.shape[:-2], *index.shape)
    return values.expand(*values.shape[:-2], index.shape[-2], -1).gather(-1, index)


def take_rotary(
    tables: tuple[Tensor, Tensor], index: Int[Tensor, "batch kept"], *, ragged: bool = True
) -> tuple[Tensor, Tensor]:
    """cos and sin, `(axes) batch length dim`: mRoPE may have a leading axis."""

    def one(table: Tensor) -> Tensor:
        if table.ndim == 3:
            return take(table, index, ragged=ragged)
        return torch.stack([take(axis, index, ragged=ragged) for axis in table])

    return one(tables[0]), one(tables[1])


def spread(
    values: Shaped[Tensor, "images tokens"],
    columns: Int[Tensor, "images tokens"],
    rows: Int[Tensor, " images"],
    batch: int,
    width: int,
) -> Shaped[Tensor, "batch width"]:
    """Values of vision tokens at their columns, zeros elsewhere."""
    # One column more, which takes the padding (-1: the last) and is cut off.
    slots = columns % (width + 1)
    empty = values.new_zeros((batch, width + 1))
    rows = rows[:, None].expand(slots.shape)
    return empty.index_put((rows, slots), values, accumulate=False)[:, :width]


def inverse(index: Int[Tensor, "batch kept"], length: int) -> Int[Tensor, "batch length"]:
    """Where each of `length` columns went; -1 if it was dropped."""
    slots = index % (length + 1)  # one column more takes the padding
    places = torch.arange(index.shape[-1], device=index.device).expand(index.shape)
    return index.new_full((index.shape[0], length + 1), -1).scatter(-1, slots, places)[:, :length]


def prompt_mask(
    mask: Tensor | None, layout: Layout, length: int, like: Tensor, *, flat: bool
) -> Tensor | None:
    """The host's mask for `length` columns of layer 0, for a layer that sees `layout`.

    `flat`: the attention takes masks of keys only (flash attention). None stays None (causal)
    unless padding or a bias has to be said.
    """
    index, bias = layout.index, layout.bias
    if mask is None and layout.valid is None and bias is not None and not flat:
        return _causal_bias(bias, like)
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
    index, bias, valid = layout.index, layout.bias, layout.valid
    num_queries = like.shape[1]
    if mask is None and valid is None and num_queries == 1 and not flat:
        return layout.grown_bias(later, like)
    if mask is not None and index is not None:
        old, new = mask[..., :length], mask[..., length:]
        if mask.ndim == 4:
            clamped = index.to(mask.device).clamp_min(0)[:, None, None]
            clamped = clamped.expand(-1, *mask.shape[1:3], -1)
            old = old.expand(len(clamped), -1, -1, -1).gather(-1, clamped)
        else:
            old = take(old, index)
        mask = torch.cat([old, new.expand(len(old), *new.shape[1:])], dim=-1)
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


def _causal_bias(bias: Tensor, like: Tensor) -> Tensor:
    """`bias` on what a query may see, for prompts without padding."""
    width = bias.shape[-1]
    aligned = width + -width % _ALIGNED
    future = torch.ones((width, aligned), dtype=torch.bool, device=like.device).triu(1)
    bias = torch.nn.functional.pad(bias.to(like.device, like.dtype), (0, aligned - width))
    shown = bias[:, None, None].expand(-1, 1, width, aligned)
    return shown.masked_fill(future, torch.finfo(like.dtype).min)[..., :width]


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
