"""SparseVLM: visual words of the question rate the vision tokens (Zhang et al., ICML 2025).

Raters are the words whose mean affinity to the vision tokens is at least that of the average word;
the score of a token is its mean attention from the raters, in the layer before the cut, averaged
over heads. Departures: affinity is a softmax of scaled cosines of states at the cut instead of dot
products of embeddings, whose scale depends on the host; budgets come from the plan, not from the
rank of the attention matrix; dropped tokens are not recycled.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, keep_best, question_similarities, row_flops
from eligo.tokens.reducer import Budget, Need, ReducerContext, Where


class SparseVLM(Method):
    """The tokens that visual words of the question attend to most."""

    places: ClassVar[frozenset[Where]] = frozenset({"inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"question", "question_rows"})
    space: ClassVar[Space] = {"scale": [0.0, 1.0, 3.0, 10.0, 30.0, 100.0]}

    name: Literal["sparsevlm"] = "sparsevlm"
    scale: float = Field(default=10.0, ge=0, le=1000)
    """Multiplier of the cosines that choose the raters; 0: all words rate."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by mean attention from the raters, highest first."""
        assert context.question_rows is not None  # checked by `select`
        raters = self._raters(context).unsqueeze(-1)
        # Attention rows of padded words may be NaN.
        attention = torch.where(raters, context.question_rows.float(), 0.0)
        return keep_best(context, attention.sum(-2) / raters.sum(-2).clamp_min(1), budget, width)

    def flops(self, num_tokens: int, num_words: int, width: int, *_: int) -> float:
        """Count cosines of words and tokens, and the attention rows of all words."""
        cosines = 2.0 * num_words * num_tokens * width
        return cosines + num_words * row_flops(num_tokens + num_words, width)

    def _raters(self, context: ReducerContext) -> Bool[Tensor, "images words"]:
        """Mark words whose affinity to the tokens is at least that of the average word."""
        cosines, words = question_similarities(self.name, context)
        affinity = ops.masked_softmax(self.scale * cosines, words.unsqueeze(-1), dim=-2)
        affinity = ops.masked_mean(affinity.transpose(-1, -2), context.mask)  # (images, words)
        # Affinities of a row sum to 1, so their mean is exact; 1e-5 allows for rounding.
        return words & (affinity * words.sum(-1, keepdim=True) >= 1 - 1e-5)
