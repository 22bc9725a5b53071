"""VisionZip: keep dominant tokens, merge the rest into contextual ones (Yang et al., CVPR 2025).

Dominant tokens are those that [CLS] attends to most; of the rest, evenly spaced tokens become
targets, and every other token is averaged into its most similar target. Departures: similarity is
the cosine of features, since attention keys are not available; targets are spaced over all of the
rest; a target is averaged with its tokens, weighted by size, which preserves norms for the
projector.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    evenly,
    fold_flops,
    fold_into,
    row_flops,
    unit_features,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, Where


class VisionZip(Method):
    """The tokens that [CLS] attends to most, and means of the rest."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    reads: ClassVar[frozenset[Need]] = frozenset({"cls_row"})
    space: ClassVar[Space] = {"contextual_ratio": [0.0, 0.05, 0.1, 0.15625, 0.25, 0.4, 0.6, 0.8]}

    name: Literal["visionzip"] = "visionzip"
    contextual_ratio: float = Field(default=0.15625, ge=0, le=1)
    """Share of the budget for contextual tokens, rounded; the paper's 10 of 64."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select dominant tokens, best first, then contextual ones in raster order."""
        assert context.cls_row is not None  # checked by `select`
        scores = context.cls_row.float().masked_fill(~context.mask, 0.0)
        num_contextual = (budget.double() * self.contextual_ratio + 0.5).long()
        # A budget for all tokens leaves nothing to merge.
        num_contextual = num_contextual.masked_fill(budget == context.mask.sum(-1), 0)
        dominant = ops.top_k(scores, budget - num_contextual, context.mask, width=width)
        rest = context.mask & ~ops.kept_mask(dominant, scores.shape[-1])
        targets = ops.align_left(evenly(rest, num_contextual), width)

        both = torch.cat([dominant, targets], -1)
        order = ops.align_left(both >= 0, width)
        indices = torch.where(order < 0, -1, ops.gather(both, order))
        is_target = order >= width  # the second half of `both` holds the targets
        return fold_into(context, indices, scores, _destination(context, indices, is_target))

    def flops(self, num_tokens: int, _words: int, width: int, _: int, budget: int) -> float:
        """Count the row of [CLS], cosines of kept and all tokens, and the fold.

        In a tower without [CLS] the row is a mean over all rows, at `num_tokens` times the cost.
        """
        cosines = 2.0 * budget * num_tokens * width
        row = row_flops(num_tokens + 1, width)
        return row + cosines + fold_flops(num_tokens, width, budget)


def _destination(context: ReducerContext, indices: Tensor, is_target: Tensor) -> Tensor:
    """Return the own column of kept tokens; for the rest the most similar target, or -1."""
    units = unit_features(context)
    if indices.shape[-1] == 0:
        return torch.full_like(context.mask, -1, dtype=torch.int64)
    similarity = ops.gather(units, indices) @ units.transpose(-1, -2)  # (images, kept, tokens)
    nearest = similarity.masked_fill(~is_target.unsqueeze(-1), -torch.inf).argmax(-2)
    nearest = torch.where(context.mask & is_target.any(-1, keepdim=True), nearest, -1)
    is_kept = indices.unsqueeze(-1) == torch.arange(units.shape[-2], device=units.device)
    return torch.where(is_kept.any(-2), is_kept.long().argmax(-2), nearest)
