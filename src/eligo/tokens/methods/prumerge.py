"""LLaVA-PruMerge: prune by attention, merge similar tokens (Shang et al., ICCV 2025).

The tokens that [CLS] attends to most stay. Each becomes `x_i + sum_j a_j x_j` over the 32 other
tokens most similar to it, kept or not, where a is the attention of [CLS]; a token may be merged
into several. PruMerge+ also keeps evenly spaced tokens (`uniform_ratio`). Departures: the number
comes from the plan, not from outliers of the attention; the sum is divided by its weights, which
preserves norms for the projector; similarity is the cosine of features, since attention keys are
not available; no token stands for all dropped ones.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    evenly,
    fold_flops,
    joined,
    row_flops,
    sizes_of,
    unit_features,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, Where


class PruMerge(Method):
    """The tokens that [CLS] attends to most, with similar tokens merged into them."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    reads: ClassVar[frozenset[Need]] = frozenset({"cls_row"})
    space: ClassVar[Space] = {
        "uniform_ratio": [0.0, 0.25, 0.5, 0.75],
        "neighbours": [4, 16, 32, 64],
    }

    name: Literal["prumerge"] = "prumerge"
    uniform_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of the budget for evenly spaced tokens, rounded; above 0 it is PruMerge+."""
    neighbours: int = Field(default=32, ge=0, le=4096)
    """Tokens merged into each."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by attention, highest first, then evenly spaced tokens in raster order."""
        assert context.cls_row is not None  # checked by `select`
        scores = context.cls_row.float().masked_fill(~context.mask, 0.0)
        num_tokens = scores.shape[-1]
        num_even = (budget.double() * self.uniform_ratio + 0.5).long()
        best = ops.top_k(scores, budget - num_even, context.mask, width=width)
        rest = context.mask & ~ops.kept_mask(best, num_tokens)
        indices = joined(best, ops.align_left(evenly(rest, num_even), width), width=width)

        units = unit_features(context)
        similarity = ops.gather(units, indices) @ units.transpose(-1, -2)
        own = indices.unsqueeze(-1) == torch.arange(num_tokens, device=indices.device)
        # A budget for all tokens leaves nothing to merge.
        merges = (indices >= 0) & (budget < context.mask.sum(-1)).unsqueeze(-1)
        others = context.mask.unsqueeze(-2) & ~own & merges.unsqueeze(-1)
        near = ops.kept_mask(
            ops.top_k(similarity, min(self.neighbours, num_tokens), others), num_tokens
        )
        weights = own + torch.where(near, scores.unsqueeze(-2), 0.0)
        assignment = weights * sizes_of(context).unsqueeze(-2)
        return Selection(indices, scores, context.mask, assignment)

    def flops(self, num_tokens: int, _words: int, width: int, _: int, budget: int) -> float:
        """Count the row of [CLS], cosines of kept and all tokens, and the fold.

        In a tower without [CLS] the row is a mean over all rows, at `num_tokens` times the cost.
        """
        cosines = 2.0 * budget * num_tokens * width
        row = row_flops(num_tokens + 1, width)
        return row + cosines + fold_flops(num_tokens, width, budget)
