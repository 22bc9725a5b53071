"""MMR: relevance less redundancy, after maximal marginal relevance (Carbonell and Goldstein 1998).

Greedy maximum of `l r_i - (1 - l) max_j cos(x_i, x_j)` over the tokens j picked so far. Relevance
is the cosine with the question's words (their mean, or the best word), scaled to [0, 1] per image:
of projected tokens and word embeddings before the language model, of states inside it.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, question_similarities, scaled, unit_features
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenValues, Where


class MMR(Method):
    """Tokens that are relevant to the question and unlike each other."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"question"})
    space: ClassVar[Space] = {
        "balance": [0.1, 0.25, 0.5, 0.75, 0.9],
        "words": ["mean", "best"],
    }

    name: Literal["mmr"] = "mmr"
    balance: float = Field(default=0.5, ge=0, le=1)
    """Lambda: 1 is relevance alone; 0 is diversity alone, after the most relevant token."""
    words: Literal["mean", "best"] = "mean"
    """Relevance is the mean cosine with the words, or that with the nearest word."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in greedy order; the score is the relevance."""
        relevance = scaled(self._relevance(context), context)
        units = unit_features(context)
        picks = ops.greedy_mmr(relevance, units, budget, self.balance, context.mask, width=width)
        return Selection(picks, relevance, context.mask)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Count cosines of words and tokens, and of all picks but the last with all tokens."""
        relevance = 2.0 * num_words * num_tokens * question_width
        return relevance + 2.0 * max(budget - 1, 0) * num_tokens * width

    def _relevance(self, context: ReducerContext) -> TokenValues:
        cosines, words = question_similarities(self.name, context)
        if self.words == "mean":
            return ops.masked_mean(cosines, words)
        best = torch.where(words.unsqueeze(-1), cosines, -torch.inf).amax(-2)
        return torch.where(words.any(-1, keepdim=True), best, 0.0)
