"""HiPrune: objects, their surroundings and global tokens (Liu et al., Findings of ACL 2026).

Anchors have the most attention in a middle layer of the tower, `round(alpha budget / 5)` of them;
buffers are their four neighbours in the grid; registers, the rest of the budget, have the most
attention in the layer that gives the features. The middle layer belongs to the host (9 of 24 in
CLIP, 16 of 32 in Qwen2.5-VL). Departure: neighbours do not wrap around the ends of rows.
"""

from typing import ClassVar, Literal

from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, joined, row_flops
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenMask, Where


class HiPrune(Method):
    """Tokens with attention in a middle layer, their neighbours, and tokens with it at the end."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    reads: ClassVar[frozenset[Need]] = frozenset({"cls_row", "object_row"})
    space: ClassVar[Space] = {"object_ratio": [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]}

    name: Literal["hiprune"] = "hiprune"
    object_ratio: float = Field(default=0.1, ge=0, le=1)
    """The paper's alpha: share of the budget for anchors and buffers."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select anchors, buffers, registers, each by attention, highest first."""
        assert context.cls_row is not None  # checked by `select`
        assert context.object_row is not None
        scores = context.cls_row.float().masked_fill(~context.mask, 0.0)
        num_anchors = (budget.double() * self.object_ratio / 5 + 0.5).long()
        anchors = ops.top_k(context.object_row.float(), num_anchors, context.mask, width=width)
        free = context.mask & ~ops.kept_mask(anchors, scores.shape[-1])
        near = free & _neighbours(context, anchors)
        buffers = ops.top_k(context.object_row.float(), budget - num_anchors, near, width=width)
        free = free & ~ops.kept_mask(buffers, scores.shape[-1])
        left = budget - num_anchors - (buffers >= 0).sum(-1)
        registers = ops.top_k(scores, left, free, width=width)
        return Selection(joined(anchors, buffers, registers, width=width), scores, context.mask)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count the rows of [CLS] in two layers.

        In a tower without [CLS] a row is a mean over all rows, at `num_tokens` times the cost.
        """
        return 2 * row_flops(num_tokens + 1, width)


def _neighbours(context: ReducerContext, anchors: Int[Tensor, "images kept"]) -> TokenMask:
    """Mark the tokens above, below, left and right of an anchor."""
    columns = context.grid[:, 1:].clamp_min(1)
    row, column = context.positions // columns, context.positions % columns
    rows = (ops.gather(row, anchors).unsqueeze(-1) - row.unsqueeze(-2)).abs()
    steps = rows + (ops.gather(column, anchors).unsqueeze(-1) - column.unsqueeze(-2)).abs()
    return ((steps == 1) & (anchors >= 0).unsqueeze(-1)).any(-2)
