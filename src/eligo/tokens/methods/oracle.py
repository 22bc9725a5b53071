"""The oracle of the embedded world: it knows which objects decide the answer.

Not a method: what is it worth to know where to look? (No upper bound: what a tower saw may lie in
other tokens than those that show it.) What the budget leaves over goes to the surroundings of those
objects, or over the whole grid.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, keep_best
from eligo.tokens.methods.grid import evenly, uniform_tokens
from eligo.tokens.reducer import Need, ReducerContext, Where


class Oracle(Method):
    """Tokens that show a deciding object, then others."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"scene"})
    space: ClassVar[Space] = {"fill": ["near", "uniform"]}

    name: Literal["oracle"] = "oracle"
    fill: Literal["near", "uniform"] = "near"
    """What else is kept: the nearest to deciding tokens, or tokens spread over the grid (always,
    where nothing decides)."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """Deciding tokens first (evenly thinned where they exceed the budget), then the fill."""
        assert context.scene is not None  # `select` saw to it
        deciding = context.scene & context.mask
        left = (budget - deciding.sum(-1)).clamp_min(0)
        others = ReducerContext(
            context.features, context.mask & ~deciding, context.positions, context.grid
        )
        # In [-1, 0] for the fill, above it for what decides.
        fill = uniform_tokens(others, left, width).float() - 1
        if self.fill == "near":
            fill = torch.where(deciding.any(-1, keepdim=True), -_distance(context, deciding), fill)
        thinned = evenly(deciding, budget.minimum(deciding.sum(-1)))
        return keep_best(context, torch.where(deciding, 1 + thinned.float(), fill), budget, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """It is told; what finding out would cost, nobody knows."""
        del num_tokens, num_words, width, question_width, budget
        return 0.0


def _distance(context: ReducerContext, deciding: Tensor) -> Float[Tensor, "images tokens"]:
    """To the nearest deciding token, as a share of the grid's diagonal."""
    if deciding.shape[-1] == 0:
        return deciding.float()
    columns = context.grid[:, 1:].clamp_min(1)
    places = torch.stack([context.positions // columns, context.positions % columns], -1).float()
    offsets = places.unsqueeze(-2) - places.unsqueeze(-3)  # (images, tokens, tokens, 2)
    squares = offsets.square().sum(-1).masked_fill(~deciding.unsqueeze(-2), torch.inf).amin(-1)
    return (squares / context.grid.float().square().sum(-1, keepdim=True)).sqrt()
