"""FastV: drop the tokens that the last prompt token attends to least (Chen et al., ECCV 2024).

One cut after an early layer; layer and budget belong to the plan. Of the paper's variants this is
the one that needs a single query row: the attention of the last prompt token in the layer before
the cut, averaged over heads.
"""

from typing import Any, ClassVar, Literal

from eligo.selection import Selection
from eligo.tokens.methods.base import Method, keep_best, row_flops
from eligo.tokens.reducer import Budget, Need, ReducerContext, Where


class AttentionRowMethod(Method):
    """Keeps the tokens that the last prompt token attends to most."""

    places: ClassVar[frozenset[Where]] = frozenset({"inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"attention_row"})

    name: Any

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by attention, highest first."""
        assert context.attention_row is not None  # checked by `select`
        return keep_best(context, context.attention_row, budget, width)

    def flops(self, num_tokens: int, num_words: int, width: int, *_: int) -> float:
        """Count the attention row of the layer before, over vision tokens and words."""
        return row_flops(num_tokens + num_words, width)


class FastV(AttentionRowMethod):
    """The tokens that the last prompt token attends to most, for one cut."""

    name: Literal["fastv"] = "fastv"
