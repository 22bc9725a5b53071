"""SparseVLM: the question's most visual words rate the vision tokens.

Zhang et al., ICML 2025: raters are the words whose mean affinity to the vision tokens is at least
the average word's; a token's score is the mean attention that raters pay it. Departures: affinity
and attention are softmaxes of cosines of the states, as the context holds one attention row only;
budgets come from the plan, not from the rank of the attention matrix; dropped tokens are not
recycled, since inside the language model states are only gathered.
"""

from typing import ClassVar, Literal

from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.method import Method, Space, keep_best, question_similarities
from eligo.tokens.reducer import Need, ReducerContext, Where


class SparseVLM(Method):
    """The tokens that visual words of the question rate best."""

    places: ClassVar[frozenset[Where]] = frozenset({"inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"question"})
    space: ClassVar[Space] = {"scale": [1.0, 3.0, 10.0, 30.0, 100.0]}

    name: Literal["sparsevlm"] = "sparsevlm"
    scale: float = Field(default=10.0, gt=0, le=1000)
    """Multiplier of the cosines in both softmaxes."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """The best rated, first."""
        cosines, words = question_similarities(self.name, context)
        logits = self.scale * cosines  # (images, words, tokens)
        affinity = ops.masked_softmax(logits, words.unsqueeze(-1), dim=-2)
        affinity = ops.masked_mean(affinity.transpose(-1, -2), context.mask)  # (images, words)
        # Affinities of a row sum to 1, so their mean is known exactly; the slack is for rounding.
        raters = words & (affinity * words.sum(-1, keepdim=True) >= 1 - 1e-5)
        attention = ops.masked_softmax(logits, context.mask.unsqueeze(-2))
        return keep_best(context, ops.masked_mean(attention, raters), budget, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Cosines of words and tokens."""
        del question_width, budget
        return 2.0 * num_words * num_tokens * width
