"""DART: keep what repeats a few pivots least (Wen et al., EMNLP 2025).

Pivots are the vision tokens and the words with the largest L1 norm. All V vision pivots are kept;
each of all P pivots p in turn takes the `(budget - V) / P` tokens i of lowest `cos(x_i, x_p)` that
are left. Departures: norms are those of states, since attention keys are not available (the paper
finds that the choice of pivots matters little); cosines are those of states without the layer's
norm; budgets are exact. Without words as pivots, it also works before the language model.
"""

from collections.abc import Mapping, Set
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    joined,
    question_similarities,
    unit_features,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, Where


class DART(Method):
    """Pivots, and the tokens least similar to them."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    # Without 0 words: a trial must not change whether the method works before or inside.
    space: ClassVar[Space] = {"pivots": [1, 2, 4, 8, 16], "word_pivots": [1, 4, 8]}
    before: ClassVar[Mapping[str, Any]] = {"word_pivots": 0}

    name: Literal["dart"] = "dart"
    pivots: int = Field(default=4, ge=1, le=256)
    """Vision tokens that are pivots."""
    word_pivots: int = Field(default=4, ge=0, le=256)
    """Words that are pivots; 0 for use before the language model."""

    @property
    def where(self) -> Set[Where]:
        """Inside, if words are pivots."""
        return frozenset({"inside"}) if self.word_pivots else self.places

    @property
    def needs(self) -> Set[Need]:
        """The question, if words are pivots."""
        return frozenset({"question"}) if self.word_pivots else frozenset()

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select the pivots, then the tokens of each in turn; the score is the L1 norm."""
        norms = _norms(context.features, context.mask)
        pivots = ops.top_k(
            norms, budget.clamp_max(self.pivots), context.mask, width=min(self.pivots, width)
        )
        units = unit_features(context)
        cosines, real = ops.gather(units, pivots) @ units.transpose(-1, -2), pivots >= 0
        if self.word_pivots:
            to_words, words = question_similarities(self.name, context)
            assert context.question is not None  # checked by `select`
            chosen = ops.top_k(_norms(context.question, words), self.word_pivots, words)
            cosines = torch.cat([cosines, ops.gather(to_words, chosen)], -2)
            real = torch.cat([real, chosen >= 0], -1)

        left = (budget - (pivots >= 0).sum(-1)).unsqueeze(-1)
        rank, count = real.long().cumsum(-1), real.sum(-1, keepdim=True).clamp_min(1)
        shares = (rank * left // count - (rank - 1) * left // count).masked_fill(~real, 0)
        free, picks = context.mask & ~ops.kept_mask(pivots, norms.shape[-1]), [pivots]
        for pivot in range(real.shape[-1]):
            picks.append(ops.top_k(-cosines[:, pivot], shares[:, pivot], free, width=width))
            free = free & ~ops.kept_mask(picks[-1], norms.shape[-1])
        return Selection(joined(*picks, width=width), norms, context.mask)

    def flops(self, num_tokens: int, num_words: int, width: int, _: int, budget: int) -> float:
        """Count cosines of tokens with the vision pivots and with all words."""
        rows = min(self.pivots, budget, num_tokens) + (num_words if self.word_pivots else 0)
        return 2.0 * rows * num_tokens * width


def _norms(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return float32 L1 norms; 0 in padding."""
    return values.float().masked_fill(~mask.unsqueeze(-1), 0.0).abs().sum(-1)
