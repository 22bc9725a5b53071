"""CDPruner: a relevant and diverse subset (Zhang et al., NeurIPS 2025).

Greedy MAP of a determinantal point process with kernel `L_ij = r_i cos(x_i, x_j) r_j`, where r is
the relevance to the instruction, scaled to [0, 1] per image. Departures: the paper works on
projected features and CLIP's text encoder; we use tower features before the language model, states
inside it, and as relevance the mean cosine with the question's words or an attention row. An
exponent weighs relevance against diversity.
"""

from collections.abc import Mapping, Set
from typing import Any, ClassVar, Literal

from pydantic import Field

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    question_similarities,
    row_flops,
    scaled,
    similarities,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenValues, Where


class CDPruner(Method):
    """Greedy MAP of a DPP whose kernel is relevance x similarity x relevance."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    # Without `cls_row`: a trial must not change whether the method works before or inside.
    space: ClassVar[Space] = {
        "relevance": ["question", "attention_row"],
        "relevance_weight": [0.1, 0.25, 0.5, 1.0, 2.0, 4.0],
    }
    before: ClassVar[Mapping[str, Any]] = {"relevance": "cls_row"}

    name: Literal["cdpruner"] = "cdpruner"
    relevance: Literal["question", "attention_row", "cls_row"] = "question"
    """Source of the relevance. Question and attention row work inside the language model,
    `cls_row` before it."""
    relevance_weight: float = Field(default=1.0, ge=0, le=16)
    """Exponent of the relevance: 0 is diversity alone, 1 is the paper's."""

    @property
    def where(self) -> Set[Where]:
        """Where its relevance is available."""
        return frozenset({"before" if self.relevance == "cls_row" else "inside"})

    @property
    def needs(self) -> Set[Need]:
        """The field that holds its relevance."""
        return frozenset({self.relevance})

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in greedy order; the score is the diagonal of the kernel."""
        quality = scaled(self._relevance(context), context) ** self.relevance_weight
        quality = quality.masked_fill(~context.mask, 0.0)
        kernel = quality.unsqueeze(-1) * similarities(context) * quality.unsqueeze(-2)
        indices = ops.greedy_dpp(kernel, budget, context.mask, width=width)
        return Selection(indices, kernel.diagonal(dim1=-2, dim2=-1).clone(), context.mask)

    def flops(self, num_tokens: int, num_words: int, width: int, _: int, budget: int) -> float:
        """Count all cosines, the relevance, and the Cholesky factor's rows 0 to budget - 1."""
        relevance = {
            "question": 2.0 * num_tokens * num_words * width,
            "attention_row": row_flops(num_tokens + num_words, width),
            "cls_row": row_flops(num_tokens + 1, width),
        }
        factor = num_tokens * budget * (budget - 1)
        return 2.0 * num_tokens**2 * width + relevance[self.relevance] + factor

    def _relevance(self, context: ReducerContext) -> TokenValues:
        if self.relevance == "question":
            return ops.masked_mean(*question_similarities(self.name, context))
        return getattr(context, self.relevance).float()
