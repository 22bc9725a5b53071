"""FastV and PyramidDrop: drop what the last prompt token does not attend to.

FastV (Chen et al., ECCV 2024) ranks vision tokens by attention in one early layer and cuts once;
PyramidDrop (Xing et al., CVPR 2025) ranks in the same way at several depths and cuts a share each
time. Both are one score; where it is used, and how often, is the plan's. We take the attention of
the last prompt token in the layer before the cut, mean over heads: of the paper's variants the one
that needs a single query row.
"""

from typing import ClassVar, Literal

from jaxtyping import Int
from torch import Tensor

from eligo.selection import Selection
from eligo.tokens.methods.base import Method, keep_best, row_flops
from eligo.tokens.reducer import Need, ReducerContext, Where


class _MostAttended(Method):
    places: ClassVar[frozenset[Where]] = frozenset({"inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"attention_row"})

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """The most attended, first."""
        assert context.attention_row is not None  # `select` saw to it
        return keep_best(context, context.attention_row, budget, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """The row of the layer before, over vision tokens and words."""
        del question_width, budget
        return row_flops(num_tokens + num_words, width)


class FastV(_MostAttended):
    """The tokens that the last prompt token attends to most, for one cut."""

    name: Literal["fastv"] = "fastv"


class PyramidDrop(_MostAttended):
    """The tokens that the last prompt token attends to most, for each of several cuts."""

    name: Literal["pyramiddrop"] = "pyramiddrop"
