"""The image's grid cut into as many windows as the budget: one token of each, or their mean.

Baselines that look at nothing but places (pooling as in LLaVA-OneVision or M3, Cai et al. 2024).
Any budget k up to the number of tokens is reached exactly. The grid of H x W is cut into
`r = round(sqrt(k H / W))` bands (as near to squares as can be), band j into
`floor((j + 1) k / r) - floor(j k / r)` windows, whose numbers differ by one at most. Windows are
equal where k = r c with r dividing H and c dividing W: of 24 x 24, k = 144 is 2x2 pooling, 64 is
3x3, 36 is 4x4. Others differ by a row or a column.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, fold_flops, fold_into, keep_marked
from eligo.tokens.reducer import ReducerContext, Where

Phase = Literal["middle", "first", "last"]
"""Which token stands for a window: its middle, its first (upper left) or its last (lower right)."""


class UniformGrid(Method):
    """One token of every window."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    space: ClassVar[Space] = {"phase": ["middle", "first", "last"]}

    name: Literal["uniform"] = "uniform"
    phase: Phase = "middle"
    """Which one. Towers keep what they learnt of the whole image in a few tokens, often along the
    border: whether the grid hits them can matter more than how fine it is."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """In raster order. Windows whose tokens are gone leave theirs to others."""
        return keep_marked(context, uniform_tokens(context, budget, width, self.phase), width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Places are integers; no product."""
        del num_tokens, num_words, width, question_width, budget
        return 0.0


class GridPooling(Method):
    """The mean of every window, in the place of its middle token."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})

    name: Literal["pool"] = "pool"

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """Means in raster order; what stands in for an empty window is left alone."""
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

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """The fold into means."""
        del num_words, question_width
        return fold_flops(num_tokens, width, budget)


def uniform_tokens(
    context: ReducerContext,
    budget: Int[Tensor, " images"],
    width: int,
    phase: Phase = "middle",
) -> Bool[Tensor, "images tokens"]:
    """Marks `budget` tokens, spread over the grid."""
    return _completed(context, windows(context, budget, width, phase)[1], budget)


def windows(
    context: ReducerContext,
    budget: Int[Tensor, " images"],
    width: int,
    phase: Phase = "middle",
) -> tuple[Int[Tensor, "images tokens"], Bool[Tensor, "images tokens"]]:
    """The window of each token (padding: `width`), and which token stands for its window."""
    positions = context.positions.long().masked_fill(~context.mask, 0)
    rows, columns = context.grid.long().clamp_min(1).unsqueeze(-1).unbind(1)  # (images, 1) each
    budget = budget.unsqueeze(-1).clamp_min(1)  # a row without budget is cut off at the end
    bands = ((budget * rows).double() / columns).sqrt().round().long()
    bands = bands.clamp_min((budget + columns - 1) // columns).clamp_max(rows.minimum(budget))
    band, y_offset = _cut(positions // columns, bands, rows, phase)
    first = band * budget // bands
    share = (band + 1) * budget // bands - first
    column, x_offset = _cut(positions % columns, share, columns, phase)
    window = (first + column).minimum(budget - 1).masked_fill(~context.mask, width)
    # The nearest to the wanted place, then the lowest index: one integer that orders by both.
    index = torch.arange(window.shape[-1], device=window.device)
    order = (y_offset.square() + x_offset.square()) * window.shape[-1] + index
    least = order.new_full((len(order), width + 1), torch.iinfo(torch.int64).max)
    least = least.scatter_reduce(-1, window, order, "amin")
    return window, context.mask & (order == least.gather(-1, window))


def evenly(
    mask: Bool[Tensor, "images tokens"], count: Int[Tensor, " images"]
) -> Bool[Tensor, "images tokens"]:
    """Marks `count` of a row's real tokens, evenly spaced in their order, the first included."""
    supply = mask.sum(-1, keepdim=True).clamp_min(1)
    rank = mask.long().cumsum(-1) - 1
    count = count.unsqueeze(-1)
    return mask & (rank * count // supply > (rank - 1) * count // supply)


def _cut(place: Tensor, num_pieces: Tensor, length: Tensor, phase: Phase) -> tuple[Tensor, Tensor]:
    """The piece of `0..length-1` that a place is in, and twice how far the wanted place is off."""
    piece = place * num_pieces // length
    begin, end = _first(piece, num_pieces, length), _first(piece + 1, num_pieces, length) - 1
    wanted = {"middle": begin + end, "first": 2 * begin, "last": 2 * end}[phase]
    return piece, 2 * place - wanted


def _first(piece: Tensor, num_pieces: Tensor, length: Tensor) -> Tensor:
    return (piece * length + num_pieces - 1) // num_pieces


def _completed(context: ReducerContext, kept: Tensor, budget: Tensor) -> Tensor:
    """Exactly `budget` marks: windows can be empty where earlier cuts took their tokens."""
    kept = ops.top_k_mask(kept.float(), budget, kept)
    return kept | evenly(context.mask & ~kept, budget - kept.sum(-1))
