"""An oracle for generated scenes: it is given the objects that decide the answer.

It is no upper bound: a tower may store information about an object in tokens that do not show it.
The rest of the budget goes to the surroundings of those objects, or is spread over the grid.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, evenly, keep_best
from eligo.tokens.methods.grid import uniform_tokens
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenValues, Where


class Oracle(Method):
    """Tokens that show an object which decides the answer, then others."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"scene"})
    space: ClassVar[Space] = {"fill": ["near", "uniform"]}

    name: Literal["oracle"] = "oracle"
    fill: Literal["near", "uniform"] = "near"
    """Use of the remaining budget: the nearest tokens, or tokens spread over the grid (always, if
    no token decides)."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select deciding tokens (evenly thinned if they exceed the budget), then the fill."""
        assert context.scene is not None  # checked by `select`
        deciding = context.scene & context.mask
        left = (budget - deciding.sum(-1)).clamp_min(0)
        others = ReducerContext(
            context.features, context.mask & ~deciding, context.positions, context.grid
        )
        # In [-1, 0] for the fill, above for deciding tokens.
        fill = uniform_tokens(others, left, width).float() - 1
        if self.fill == "near":
            fill = torch.where(deciding.any(-1, keepdim=True), -_distance(context, deciding), fill)
        thinned = evenly(deciding, budget.minimum(deciding.sum(-1)))
        return keep_best(context, torch.where(deciding, 1 + thinned.float(), fill), budget, width)

    def flops(self, *_: int) -> float:
        """The deciding tokens are given, not computed."""
        return 0.0


def _distance(context: ReducerContext, deciding: Tensor) -> TokenValues:
    """Return the distance to the nearest deciding token, relative to the grid's diagonal."""
    if deciding.shape[-1] == 0:
        return deciding.float()
    columns = context.grid[:, 1:].clamp_min(1)
    places = torch.stack([context.positions // columns, context.positions % columns], -1).float()
    offsets = places.unsqueeze(-2) - places.unsqueeze(-3)  # (images, tokens, tokens, 2)
    squares = offsets.square().sum(-1).masked_fill(~deciding.unsqueeze(-2), torch.inf).amin(-1)
    return (squares / context.grid.float().square().sum(-1, keepdim=True)).sqrt()
