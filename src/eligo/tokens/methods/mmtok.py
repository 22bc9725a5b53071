"""MMTok: tokens that cover the question and the image (Dong et al., ICLR 2026).

Greedy maximum of `C(S) = sum_m max_{j in S} P_mj / M + a sum_i max_{j in S} Q_ij / N`. Row m of P
is a softmax over tokens of `cos(word m, token j) / T_text`, row i of Q one of
`cos(token i, token j) / T_vision`. As in the paper, words are compared with projected tokens, and
tokens with each other by tower features. Departures: all text of the prompt counts as question; no
second model adds words to it; inside the language model, states take the place of both.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, question_similarities, similarities
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenMask, Where

_BLOCK = 16  # gains that are computed together, where the best one is not known


class MMTok(Method):
    """Greedy coverage of the question's words and of all tokens."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})
    reads: ClassVar[frozenset[Need]] = frozenset({"question"})
    space: ClassVar[Space] = {
        "vision_weight": [0.1, 0.25, 0.5, 1.0, 2.0],
        "text_temperature": [0.01, 0.02, 0.05, 0.2],
    }

    name: Literal["mmtok"] = "mmtok"
    vision_weight: float = Field(default=0.5, ge=0, le=100)
    """The paper's alpha: weight of the image against the question."""
    text_temperature: float = Field(default=0.02, ge=0.001, le=10)
    """Temperature of the softmax for words."""
    vision_temperature: float = Field(default=0.2, ge=0.001, le=10)
    """Temperature of the softmax for tokens."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in greedy order; the score is the gain of the first pick."""
        cosines, words = question_similarities(self.name, context)
        text = _rows(cosines, words, context.mask, self.text_temperature)
        among = similarities(context)
        vision = _rows(among, context.mask, context.mask, self.vision_temperature)
        weights = torch.cat([text, vision * self.vision_weight], -2)
        gains = _gains(weights, weights.new_zeros((*weights.shape[:-1], 1)))
        return Selection(_cover(weights, gains, budget, context.mask, width), gains, context.mask)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, _: int
    ) -> float:
        """Count cosines of words and tokens, and of all pairs of tokens."""
        return 2.0 * num_tokens * (num_words * question_width + num_tokens * width)


def _rows(
    cosines: Float[Tensor, "images rows tokens"],
    rows: Tensor,
    tokens: TokenMask,
    temperature: float,
) -> Float[Tensor, "images rows tokens"]:
    """Return the softmax of each real row, divided by their number; 0 in padding."""
    # In float64: in float32, padding would change the last digit, which decides between equals.
    logits = (cosines.double() / temperature).masked_fill(~tokens.unsqueeze(-2), -torch.inf)
    real = rows.unsqueeze(-1) & tokens.unsqueeze(-2)
    shares = logits.softmax(-1).masked_fill(~real, 0.0)
    return (shares / rows.sum(-1).clamp_min(1)[:, None, None]).float()


def _gains(
    weights: Float[Tensor, "images rows tokens"], covered: Float[Tensor, "images rows 1"]
) -> Float[Tensor, "images tokens"]:
    """Return by how much each token would raise the coverage."""
    return (weights - covered).clamp_min_(0.0).sum(-2, dtype=torch.float64).float()


def _cover(
    weights: Float[Tensor, "images rows tokens"],
    gains: Float[Tensor, "images tokens"],
    budget: Budget,
    mask: TokenMask,
    width: int,
) -> Int[Tensor, "images kept"]:
    """Pick the token with the largest gain, `budget` times; -1 pads the end.

    `gains` are those of the first pick.
    """
    if not weights.is_cuda:
        rows = zip(weights, gains.masked_fill(~mask, -torch.inf), budget.tolist(), strict=True)
        picks = [_cover_lazily(each, bounds, count, width) for each, bounds, count in rows]
        return torch.stack(picks) if picks else mask.new_empty((0, width), dtype=torch.int64)
    free, covered = mask, weights.new_zeros((*weights.shape[:-1], 1))
    picks = mask.new_full((len(mask), width), -1, dtype=torch.int64)
    for step in range(width):
        if step:
            gains = _gains(weights, covered)
        pick = torch.where(free, gains, -torch.inf).argmax(-1, keepdim=True)
        free = free.scatter(-1, pick, False)
        picks[:, step] = pick.squeeze(-1)
        covered = torch.maximum(covered, weights.gather(-1, pick.unsqueeze(-2).expand_as(covered)))
    columns = torch.arange(width, device=mask.device)
    return torch.where(columns < budget.unsqueeze(-1), picks, -1)


def _cover_lazily(
    weights: Float[Tensor, "rows tokens"], bounds: Float[Tensor, " tokens"], count: int, width: int
) -> Int[Tensor, " kept"]:
    """Return the same picks for one image on a CPU.

    Gains only fall (Minoux 1978), so old ones are upper bounds: few are computed anew for a pick.
    """
    columns, bound = weights.T.contiguous().numpy(), bounds.numpy()
    covered, is_new = np.zeros(len(weights), np.float32), np.ones(len(bound), bool)
    picks, block = np.full(width, -1), min(_BLOCK, len(bound))
    for step in range(count):
        while not is_new[best := bound.argmax()]:
            stale = np.argpartition(bound, -block)[-block:]
            stale[0] = best  # of equals, it may have been left out
            gains = np.maximum(columns[stale] - covered, 0).sum(-1, dtype=np.float64)
            bound[stale] = np.where(bound[stale] == -np.inf, -np.inf, gains)
            is_new[stale] = True
        picks[step], bound[best], is_new[:] = best, -np.inf, False
        np.maximum(covered, columns[best], out=covered)
    return torch.from_numpy(picks)
