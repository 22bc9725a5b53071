"""DivPrune: the most diverse subset (Alvar et al., CVPR 2025).

Greedy maximum of `min_{i != j in S} 1 - cos(x_i, x_j)`. Departure: the paper works on projected
features; we use tower features before the language model and states inside it.
"""

from typing import ClassVar, Literal

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, similarities
from eligo.tokens.reducer import Budget, ReducerContext, Where


class DivPrune(Method):
    """Greedy max-min cosine distance."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["divprune"] = "divprune"

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in greedy order; the score is the distance to the nearest other token."""
        distances = 1 - similarities(context)
        indices = ops.farthest_points(distances, budget, context.mask, width=width)
        # A single token is infinitely far from all others; tables and plots need a number.
        scores = ops.nearest_other(distances, context.mask).clamp_max(2.0)
        return Selection(indices, scores.masked_fill(~context.mask, 0.0), context.mask)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count the cosines of all pairs."""
        return 2.0 * num_tokens**2 * width
