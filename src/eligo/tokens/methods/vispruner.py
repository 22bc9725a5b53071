"""VisPruner: important tokens, and distinct ones of the rest (Zhang et al., ICCV 2025).

Half of the budget goes to the tokens that [CLS] attends to most. The rest, in order of attention,
is split alternately into A and B, and the 8 tokens i of A with the largest `max_{j in B} cos(x_i,
x_j)` are dropped; this repeats until the other half of the budget is left. Departure: survivors
stay in order of attention, while the released code reorders A by similarity.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, joined, row_flops, similarities
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenIndex, Where

_PER_ROUND = 8


class VisPruner(Method):
    """The tokens that [CLS] attends to most, and others without near duplicates."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    reads: ClassVar[frozenset[Need]] = frozenset({"cls_row"})
    space: ClassVar[Space] = {"important_ratio": [0.0, 0.1, 0.25, 0.5, 0.75, 0.9]}

    name: Literal["vispruner"] = "vispruner"
    important_ratio: float = Field(default=0.5, ge=0, le=1)
    """Share of the budget for tokens chosen by attention, rounded down."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select important tokens, then distinct ones, each by attention, highest first."""
        assert context.cls_row is not None  # checked by `select`
        scores = context.cls_row.float().masked_fill(~context.mask, 0.0)
        num_tokens = scores.shape[-1]
        num_important = (budget.double() * self.important_ratio).long()
        important = ops.top_k(scores, num_important, context.mask, width=width)
        rest = context.mask & ~ops.kept_mask(important, num_tokens)
        order = ops.top_k(scores, max(num_tokens, 2), rest)
        distinct = _drop_duplicates(similarities(context), order, budget - num_important)
        return Selection(joined(important, distinct, width=width), scores, context.mask)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count the row of [CLS] and the cosines of all pairs.

        In a tower without [CLS] the row is a mean over all rows, at `num_tokens` times the cost.
        """
        return row_flops(num_tokens + 1, width) + 2.0 * num_tokens**2 * width


def _drop_duplicates(
    similarity: Float[Tensor, "images candidates candidates"], order: TokenIndex, target: Budget
) -> TokenIndex:
    """Drop tokens from `order` until `target` are left in each row; -1 pads the end."""
    num_columns = order.shape[-1]
    # The last 14 take up to 4 rounds, as a round drops no more than A.
    for _ in range(num_columns // _PER_ROUND + 5):
        count = (order >= 0).sum(-1)
        num_dropped = (count - target).clamp(0, _PER_ROUND).minimum((count + 1) // 2)
        if values_are_free(num_dropped) and not bool(num_dropped.any()):
            break
        side_a, side_b = order[:, ::2], order[:, 1::2]
        to_b = ops.gather(ops.gather(similarity, side_a).transpose(-1, -2), side_b)
        nearest = to_b.masked_fill((side_b < 0).unsqueeze(-1), -torch.inf).amax(-2)
        width = min(_PER_ROUND, side_a.shape[-1])
        dropped = ops.top_k(nearest, num_dropped, side_a >= 0, width=width)
        dropped = torch.where(dropped < 0, -1, 2 * dropped)
        left = (order >= 0) & ~ops.kept_mask(dropped, num_columns)
        order = joined(torch.where(left, order, -1), width=num_columns)
    return order
