"""SparseVLM: the question's most visual words rate the vision tokens.

Zhang et al., ICML 2025: raters are the words whose mean affinity to the vision tokens is at least
the average word's; a token's score is the mean attention that raters pay it. Attention is that of
the layer before the cut, mean over heads. Departures: affinity is a softmax of scaled cosines of
states at the cut rather than of plain dots of embeddings, whose size differs from host to host;
budgets come from the plan, not from the rank of the attention matrix; dropped tokens are not
recycled, since inside the language model states are only gathered.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    keep_best,
    question_similarities,
    row_flops,
)
from eligo.tokens.reducer import Need, ReducerContext, Where


class SparseVLM(Method):
    """The tokens that visual words of the question attend to most."""

    places: ClassVar[frozenset[Where]] = frozenset({"inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"question", "question_rows"})
    space: ClassVar[Space] = {"scale": [0.0, 1.0, 3.0, 10.0, 30.0, 100.0]}

    name: Literal["sparsevlm"] = "sparsevlm"
    scale: float = Field(default=10.0, ge=0, le=1000)
    """Multiplier of the cosines by which raters are chosen; 0: all words rate."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """The best rated, first."""
        assert context.question_rows is not None  # `select` saw to it
        raters = self._raters(context).unsqueeze(-1)
        # What a hidden word attends to may be NaN: padding sees nothing.
        attention = torch.where(raters, context.question_rows.float(), 0.0)
        return keep_best(context, attention.sum(-2) / raters.sum(-2).clamp_min(1), budget, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Cosines of words and tokens, and the words' rows over vision tokens and words."""
        del question_width, budget
        cosines = 2.0 * num_words * num_tokens * width
        return cosines + num_words * row_flops(num_tokens + num_words, width)

    def _raters(self, context: ReducerContext) -> Bool[Tensor, "images words"]:
        """Words that the tokens are no less akin to than to the average word."""
        cosines, words = question_similarities(self.name, context)
        affinity = ops.masked_softmax(self.scale * cosines, words.unsqueeze(-1), dim=-2)
        affinity = ops.masked_mean(affinity.transpose(-1, -2), context.mask)  # (images, words)
        # Affinities of a row sum to 1, so their mean is known exactly; the slack is for rounding.
        return words & (affinity * words.sum(-1, keepdim=True) >= 1 - 1e-5)
