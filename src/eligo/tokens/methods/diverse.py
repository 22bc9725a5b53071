"""Methods that choose a set: DivPrune (diversity), CDPruner (relevance and diversity).

DivPrune (Alvar et al., CVPR 2025): the subset with the largest smallest cosine distance, greedily.
CDPruner (Zhang et al., NeurIPS 2025): greedy MAP of a determinantal point process with the kernel
`L_ij = r_i cos(x_i, x_j) r_j`, r the relevance to the instruction, scaled to [0, 1] in each image.
Departures: the papers work on projected features and CDPruner on CLIP's text encoder; we take what
the context holds: tower features before, states inside, and as relevance the mean cosine with the
question's words, or an attention row. An exponent weighs relevance against diversity.
"""

from collections.abc import Set
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import (
    Method,
    Space,
    question_similarities,
    row_flops,
    similarities,
)
from eligo.tokens.reducer import Need, ReducerContext, Where


class DivPrune(Method):
    """Greedy max-min cosine distance."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["divprune"] = "divprune"

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """In order of choice; the score is the distance to the nearest other token."""
        distances = 1 - similarities(context)
        indices = ops.farthest_points(distances, budget, context.mask, width=width)
        # A lone token is infinitely far from all others; tables and plots want a number.
        scores = ops.nearest_other(distances, context.mask).clamp_max(2.0)
        return Selection(indices, scores.masked_fill(~context.mask, 0.0), context.mask)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Cosines of all pairs."""
        del num_words, question_width, budget
        return 2.0 * num_tokens**2 * width


class CDPruner(Method):
    """Greedy MAP of a DPP whose kernel is relevance x similarity x relevance."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    # Not `cls_row`, which stands elsewhere: a trial must not move the method.
    space: ClassVar[Space] = {
        "relevance": ["question", "attention_row"],
        "relevance_weight": [0.1, 0.25, 0.5, 1.0, 2.0, 4.0],
    }

    name: Literal["cdpruner"] = "cdpruner"
    relevance: Literal["question", "attention_row", "cls_row"] = "question"
    """What makes a token relevant. Words and tokens share a space only inside the language model,
    and so does the attention row; before it there is `cls_row`."""
    relevance_weight: float = Field(default=1.0, ge=0, le=16)
    """Exponent of the relevance: 0 is diversity alone, 1 the paper's."""

    @property
    def where(self) -> Set[Where]:
        """Where its relevance is known."""
        return frozenset({"before" if self.relevance == "cls_row" else "inside"})

    @property
    def needs(self) -> Set[Need]:
        """What its relevance is taken from."""
        return frozenset({self.relevance})

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """In order of choice; the score is the kernel's diagonal, what the first is chosen by."""
        quality = _scaled(self._relevance(context), context) ** self.relevance_weight
        quality = quality.masked_fill(~context.mask, 0.0)
        kernel = quality.unsqueeze(-1) * similarities(context) * quality.unsqueeze(-2)
        indices = ops.greedy_dpp(kernel, budget, context.mask, width=width)
        return Selection(indices, kernel.diagonal(dim1=-2, dim2=-1).clone(), context.mask)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Cosines of all pairs, the relevance, and the Cholesky factor's rows 0 to budget - 1."""
        del question_width
        relevance = {
            "question": 2.0 * num_tokens * num_words * width,
            "attention_row": row_flops(num_tokens + num_words, width),
            "cls_row": row_flops(num_tokens + 1, width),
        }
        factor = num_tokens * budget * (budget - 1)
        return 2.0 * num_tokens**2 * width + relevance[self.relevance] + factor

    def _relevance(self, context: ReducerContext) -> Float[Tensor, "images tokens"]:
        if self.relevance == "question":
            cosines, words = question_similarities(self.name, context)
            return ops.masked_mean(cosines, words)
        row = getattr(context, self.relevance)
        assert row is not None  # `select` saw to it
        return row.float()


def _scaled(values: Tensor, context: ReducerContext) -> Tensor:
    """A row's real values stretched to [0, 1]; all 1 where they are equal."""
    if values.shape[-1] == 0:
        return values
    low = torch.where(context.mask, values, torch.inf).amin(-1, keepdim=True)
    high = torch.where(context.mask, values, -torch.inf).amax(-1, keepdim=True)
    spread = high - low
    return torch.where(spread > 0, (values - low) / spread, 1.0).masked_fill(~context.mask, 0.0)
