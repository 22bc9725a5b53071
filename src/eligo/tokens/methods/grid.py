"""The token grid cut into as many windows as the budget: one token of each window, or its mean.

Baselines that use only positions (pooling as in LLaVA-OneVision or M3, Cai et al. 2024). Any budget
k up to the number of tokens is reached exactly. A grid of H x W is cut into
`r = round(sqrt(k H / W))` bands, so that windows are nearly square, and band j into
`floor((j + 1) k / r) - floor(j k / r)` windows. These are equal where k = r c with r dividing H and
c dividing W: for 24 x 24, k = 144 is 2x2 pooling, 64 is 3x3, 36 is 4x4. Otherwise they differ by a
row or a column.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, evenly, fold_flops, fold_into, keep_marked
from eligo.tokens.reducer import Budget, ReducerContext, TokenIndex, TokenMask, Where

Phase = Literal["middle", "first", "last"]
"""Which token represents a window: its middle, first (upper left) or last (lower right)."""


class UniformGrid(Method):
    """One token of every window."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    space: ClassVar[Space] = {"phase": ["middle", "first", "last"]}

    name: Literal["uniform"] = "uniform"
    phase: Phase = "middle"
    """Which one. Towers store global information in a few tokens, often at the border: keeping them
    can matter more than the number of windows."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in raster order; tokens elsewhere replace those of empty windows."""
        kept = uniform_tokens(context, budget, width, self.phase)
        return keep_marked(context, kept, width)

    def flops(self, *_: int) -> float:
        """Integer positions have no products."""
        return 0.0


class GridPooling(Method):
    """The mean of every window, at the position of its middle token."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})

    name: Literal["pool"] = "pool"

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Average each window, in raster order; replacements for empty windows are not averaged."""
        window, middle = windows(context, budget, width)
        selection = keep_marked(context, _completed(context, middle, budget), width)
        column = selection.kept_mask.long().cumsum(-1) - 1
        # The column of each window's middle token, then of each token's window.
        slots = torch.where(middle, window, width)
        of_window = column.new_zeros((len(column), width + 1)).scatter(-1, slots, column)
        shared = of_window.gather(-1, window)
        destination = torch.where(selection.kept_mask, column, shared)
        destination = destination.masked_fill(~context.mask, -1)
        return fold_into(context, selection.indices, selection.scores, destination)

    def flops(self, num_tokens: int, _words: int, width: int, _: int, budget: int) -> float:
        """Count the means."""
        return fold_flops(num_tokens, width, budget)


def uniform_tokens(
    context: ReducerContext, budget: Budget, width: int, phase: Phase = "middle"
) -> TokenMask:
    """Mark `budget` tokens, spread over the grid."""
    return _completed(context, windows(context, budget, width, phase)[1], budget)


def windows(
    context: ReducerContext, budget: Budget, width: int, phase: Phase = "middle"
) -> tuple[TokenIndex, TokenMask]:
    """Return the window of each token (`width` for padding), and a mask of representatives."""
    positions = context.positions.long().masked_fill(~context.mask, 0)
    rows, columns = context.grid.long().clamp_min(1).unsqueeze(-1).unbind(1)  # (images, 1) each
    budget = budget.unsqueeze(-1).clamp_min(1)  # rows without budget are emptied at the end
    bands = ((budget * rows).double() / columns).sqrt().round().long()
    bands = bands.clamp_min((budget + columns - 1) // columns).clamp_max(rows.minimum(budget))
    band, y_offset = _cut(positions // columns, bands, rows, phase)
    first = band * budget // bands
    share = (band + 1) * budget // bands - first
    column, x_offset = _cut(positions % columns, share, columns, phase)
    window = (first + column).minimum(budget - 1).masked_fill(~context.mask, width)
    # One integer that orders by distance to the target, then by index.
    index = torch.arange(window.shape[-1], device=window.device)
    order = (y_offset.square() + x_offset.square()) * window.shape[-1] + index
    least = order.new_full((len(order), width + 1), torch.iinfo(torch.int64).max)
    least = least.scatter_reduce(-1, window, order, "amin")
    return window, context.mask & (order == least.gather(-1, window))


def _cut(place: Tensor, num_pieces: Tensor, length: Tensor, phase: Phase) -> tuple[Tensor, Tensor]:
    """Return the piece of `0..length-1` that holds a place, and twice the offset from target."""
    piece = place * num_pieces // length
    begin, end = _first(piece, num_pieces, length), _first(piece + 1, num_pieces, length) - 1
    target = {"middle": begin + end, "first": 2 * begin, "last": 2 * end}[phase]
    return piece, 2 * place - target


def _first(piece: Tensor, num_pieces: Tensor, length: Tensor) -> Tensor:
    return (piece * length + num_pieces - 1) // num_pieces


def _completed(context: ReducerContext, kept: Tensor, budget: Tensor) -> Tensor:
    """Mark exactly `budget` tokens: earlier cuts may have emptied some windows."""
    kept = ops.top_k_mask(kept.float(), budget, kept)
    return kept | evenly(context.mask & ~kept, budget - kept.sum(-1))
