"""The columns that a layer sees, and the masks and rotary tables that follow from them.

All indices count columns of layer 0, the language model's input. Rows that kept fewer columns
than the longest one are aligned to the right and padded with -1 on the left: padding is hidden in
the mask, but a padded query still sees itself, so that no row is empty. All layers between two cuts
share one layout, and so one mask and one pair of tables; these are gathered, never rebuilt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from eligo import ops

Columns = Int[Tensor, "batch kept"]
Values = Shaped[Tensor, "..."]

_ALIGNED = 16  # SDPA copies masks with unaligned rows, in every layer
_GROWTH = 256  # columns by which the masks of decoding grow


@dataclass(frozen=True, eq=False)
class Layout:
    """Columns of the prompt in the layers between two cuts."""

    index: Int[Tensor, "batch width"] | None  # columns of layer 0; None: all of them
    images: Int[Tensor, "images tokens"]  # columns of vision tokens in this layout; -1 pads
    words: Int[Tensor, "batch words"]  # columns of the text in this layout; -1 pads
    positions: Int[Tensor, "images tokens"]  # raster index of each token in its image's grid
    sizes: Float[Tensor, "images tokens"] | None  # tokens merged into each; None: one each
    counts: Sequence[int]  # tokens per image; known without a device sync
    lengths: Sequence[int]  # columns per row; known without a device sync
    bias: Float[Tensor, "batch width"] | None = None  # of the attention logits of these keys

    @property
    def batch(self) -> int:
        """Number of rows."""
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
        """True for real columns; None if all are."""
        return None if self.index is None or not self.ragged else self.index >= 0

    @cached_property
    def _grown(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        return {}

    def grown_bias(self, later: int, like: Tensor) -> Float[Tensor, "batch 1 1 keys"] | None:
        """Return `bias` followed by zeros for `later` columns; in most decoding steps a view."""
        if self.bias is None:
            return None
        key, size = (like.device, like.dtype), self.width + later
        grown = self._grown.get(key)
        if grown is None or grown.shape[-1] < size:
            bias = self.bias.detach().to(like.device, like.dtype)
            grown = self._grown[key] = F.pad(bias, (0, -size % _GROWTH + later))
        return grown[:, None, None, :size]

    def repeated(self, times: int) -> "Layout":
        """Return the layout with each row repeated (beams); only the fields that decoding reads."""
        return replace(
            self,
            index=None if self.index is None else self.index.repeat_interleave(times, 0),
            words=self.words.repeat_interleave(times, 0),
            lengths=[length for length in self.lengths for _ in range(times)],
            bias=None if self.bias is None else self.bias.repeat_interleave(times, 0),
        )


def arrange(
    words: Int[Tensor, "batch words"], images: Int[Tensor, "batch tokens"], lengths: Sequence[int]
) -> tuple[Columns, Columns, Int[Tensor, "batch words_and_tokens"]]:
    """Return the sorted columns, aligned to the right; their input indices; and their new indices.

    The input is words, then tokens. -1 sorts first, so shorter rows are padded on the left.
    """
    both = torch.cat([words, images], dim=1)
    spare = both.shape[1] - max(lengths)
    columns, order = both.sort(dim=1, stable=True)
    places = order.argsort(dim=1)
    if min(lengths) < both.shape[1]:
        places = (places - spare).masked_fill(both < 0, -1)
    return columns[:, spare:], order[:, spare:], places


def take(values: Values, index: Columns, *, ragged: bool = True) -> Values:
    """Gather `batch length *features`, on the device of the values; zeros at -1 (`ragged`)."""
    return ops.gather(values, index.to(values.device), padded=ragged)


def take_index(
    columns: Int[Tensor, "batch columns"], index: Columns, *, ragged: bool = True
) -> Columns:
    """Gather values that are indices themselves: -1 stays -1."""
    picked = take(columns, index, ragged=ragged)
    return picked.masked_fill(index.to(picked.device) < 0, -1) if ragged else picked


def take_last(values: Values, index: Columns) -> Shaped[Tensor, "... kept"]:
    """Gather position ids, `(axes) batch length` or one row for all; column 0 at -1."""
    index = index.to(values.device).clamp_min(0)
    index = index.expand(*values.shape[:-2], *index.shape)
    return values.expand(*values.shape[:-2], index.shape[-2], -1).gather(-1, index)


def take_rotary(
    tables: tuple[Tensor, Tensor], index: Columns, *, ragged: bool = True
) -> tuple[Tensor, Tensor]:
    """Gather cos and sin, `(axes) batch length dim`: mRoPE may have a leading axis."""

    def gather(table: Tensor) -> Tensor:
        if table.ndim == 3:
            return take(table, index, ragged=ragged)
        return torch.stack([take(axis, index, ragged=ragged) for axis in table])

    return gather(tables[0]), gather(tables[1])


def put(
    base: Shaped[Tensor, "batch width *features"],
    values: Shaped[Tensor, "images tokens *features"],
    columns: Int[Tensor, "images tokens"],
    rows: Int[Tensor, " images"],
) -> Shaped[Tensor, "batch width *features"]:
    """Return `base` with values of vision tokens at their columns; -1 is ignored."""
    width = base.shape[1]
    slots = columns % (width + 1)  # an extra column takes the padding
    extra = base.new_zeros((len(base), 1, *base.shape[2:]))
    rows = rows[:, None].expand(slots.shape)
    return torch.cat([base, extra], dim=1).index_put((rows, slots), values)[:, :width]


def inverse(index: Columns, length: int) -> Int[Tensor, "batch length"]:
    """Return the index of each of `length` columns in `index`; -1 if it was dropped."""
    slots = index % (length + 1)  # an extra column takes the padding
    places = torch.arange(index.shape[-1], device=index.device).expand(index.shape)
    return index.new_full((index.shape[0], length + 1), -1).scatter(-1, slots, places)[:, :length]


def prompt_mask(mask: Tensor | None, layout: Layout, like: Tensor, *, flat: bool) -> Tensor | None:
    """Return the host's mask of the prompt for a layer that sees `layout`.

    `flat`: the attention takes masks of keys only (flash attention). None (causal) stays None
    unless there is padding or a bias.
    """
    index, bias, valid = layout.index, layout.bias, layout.valid
    if mask is None and valid is None and bias is not None and not flat:
        return _causal_bias(bias, like)
    if mask is not None and index is not None:
        mask = take(mask, index) if mask.ndim == 2 else _take_square(mask, index)
    if flat:
        return _key_mask(mask, None if valid is None else valid.to(like.device))
    if mask is None and valid is None:
        return None
    if mask is None:
        mask = causal_mask(layout.width, layout.width, like.device)
    if valid is not None:
        valid = valid.to(mask.device)
        diagonal = torch.eye(layout.width, dtype=torch.bool, device=mask.device)
        mask = _fill(mask, ~valid[:, None, None, :], visible=False)
        mask = _fill(mask, diagonal & ~valid[:, None, :, None], visible=True)
    if bias is None:
        return mask
    return aligned(add_bias(mask, bias.to(mask.device)[:, None, None], like))


def later_mask(
    mask: Tensor | None, layout: Layout, length: int, later: int, like: Tensor, *, flat: bool
) -> Tensor | None:
    """Return the mask of queries after the prompt: over the layer's columns, then all later ones.

    `length`: columns of the prompt at layer 0; `later`: columns after it, including the queries.
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
        valid = F.pad(valid.to(like.device), (0, later), value=True)
    if flat:
        return _key_mask(mask, valid)
    if mask is None:
        # With a filled cache, SDPA would read "no mask" as causal from the first key on.
        mask = causal_mask(num_queries, layout.width + later, like.device)
    if valid is not None:
        mask = _fill(mask, ~valid[:, None, None, :].to(mask.device), visible=False)
    if bias is None:
        return mask
    return add_bias(mask, F.pad(bias.to(mask.device), (0, later))[:, None, None], like)


def window_mask(
    columns: Int[Tensor, "batch keys"],
    num_queries: int,
    window: int | None,
    key_mask: Shaped[Tensor, "batch keys"] | None,
) -> Bool[Tensor, "batch 1 queries keys"]:
    """Return the mask of the last queries over all keys, by their columns in the full prompt.

    A window counts columns of the full prompt, also dropped ones. -1 pads.
    """
    keys = columns[:, None, None]
    queries = keys[..., -num_queries:].transpose(-1, -2)
    visible = (keys <= queries) & (keys >= 0)
    if window is not None:
        visible = visible & (queries - keys < window)
    return visible if key_mask is None else visible & key_mask.bool()[:, None, None]


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "1 1 _ _"]:
    """Return a causal mask whose last query sees all keys."""
    mask = torch.ones((num_queries, num_keys), dtype=torch.bool, device=device)
    return mask.tril(num_keys - num_queries)[None, None]


def _causal_bias(bias: Tensor, like: Tensor) -> Tensor:
    """Return `bias` under a causal mask, for prompts without padding."""
    width = bias.shape[-1]
    aligned = width + -width % _ALIGNED
    future = torch.ones((width, aligned), dtype=torch.bool, device=like.device).triu(1)
    bias = F.pad(bias.to(like.device, like.dtype), (0, aligned - width))
    visible = bias[:, None, None].expand(-1, 1, width, aligned)
    return visible.masked_fill(future, torch.finfo(like.dtype).min)[..., :width]


def aligned(mask: Values) -> Values:
    """Return a mask whose rows start at multiples of 16 in memory."""
    width = mask.shape[-1]
    return F.pad(mask, (0, -width % _ALIGNED))[..., :width]


def add_bias(mask: Values, bias: Float[Tensor, "..."], like: Tensor) -> Float[Tensor, "..."]:
    """Return a float mask with `bias` on visible keys and the lowest number elsewhere.

    Filled, not added: twice the lowest number is -inf, and a row of it NaN.
    """
    lowest = torch.finfo(like.dtype).min
    if mask.dtype == torch.bool:
        return torch.where(mask, bias.to(like.dtype), lowest)
    return torch.where(mask > lowest / 2, mask + bias.to(mask.dtype), lowest)


def _key_mask(mask: Tensor | None, valid: Tensor | None) -> Tensor | None:
    if valid is None:
        return mask
    return valid if mask is None else mask.bool() & valid


def _take_square(mask: Tensor, index: Tensor) -> Tensor:
    """Gather queries and keys of a 4-D mask."""
    index = index.to(mask.device).clamp_min(0)
    batch, kept = index.shape
    mask = mask.expand(batch, -1, -1, -1)
    heads, keys = mask.shape[1], mask.shape[3]
    mask = mask.gather(2, index[:, None, :, None].expand(batch, heads, kept, keys))
    return mask.gather(3, index[:, None, None, :].expand(batch, heads, kept, kept))


def _fill(mask: Tensor, where: Tensor, *, visible: bool) -> Tensor:
    """Show or hide entries of a boolean or float mask."""
    mask, where = torch.broadcast_tensors(mask, where)
    if mask.dtype == torch.bool:
        return mask.masked_fill(where, visible)
    return mask.masked_fill(where, 0.0 if visible else torch.finfo(mask.dtype).min)
