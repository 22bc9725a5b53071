"""EVS: what changed since the frame before (Bagrov et al. 2025, Efficient Video Sampling).

A token's score is `1 - cos(x_t, x_{t-1})` of its features with those at the same place in the frame
before; the first frame comes before all others. Departures: budgets are exact, so that less than a
frame is possible, which keeps evenly spaced tokens of the first frame (and is all that happens to
an image); features are those of the tower, projected in the hosts that take videos.
"""

from typing import ClassVar, Literal

import torch

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, evenly, keep_best, unit_features
from eligo.tokens.methods.frames import frame_sizes
from eligo.tokens.reducer import Budget, ReducerContext, TokenIndex, Where


class EVS(Method):
    """The tokens that differ most from the same place in the frame before."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})

    name: Literal["evs"] = "evs"

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select tokens without a predecessor, then by distance from it; scores are above 2 first.

        Distances are at most 2.
        """
        before = _same_place_before(context)
        units = unit_features(context)
        cosines = torch.einsum("itd,itd->it", units, ops.gather(units, before))
        is_first = context.mask & (before < 0)
        spread = evenly(is_first, torch.minimum(budget, is_first.sum(-1)))
        scores = torch.where(is_first, 2.5 + 0.5 * spread, 1 - cosines)
        return keep_best(context, scores, budget, width)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count one cosine per token."""
        return 2.0 * num_tokens * width


def _same_place_before(context: ReducerContext) -> TokenIndex:
    """Return the index of the token at the same place in the frame before; -1 if there is none."""
    if context.mask.shape[-1] == 0:
        return context.positions
    last = torch.iinfo(context.positions.dtype).max
    places = context.positions.masked_fill(~context.mask, last)
    ordered, order = places.sort(dim=-1)
    wanted = places - frame_sizes(context)
    found = torch.searchsorted(ordered, wanted).clamp_max(places.shape[-1] - 1)
    is_there = context.mask & (wanted >= 0) & (ordered.gather(-1, found) == wanted)
    return torch.where(is_there, order.gather(-1, found), -1)
