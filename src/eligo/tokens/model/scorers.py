"""Scores and ranks of vision tokens, shared by merger and pruners.

The heads of the two-stage pruning design (docs/sources.md). Departures: a float32 LayerNorm before
every projection (tower features have outlier channels and word embeddings a scale of 0.02), and
float32 throughout even under autocast (bfloat16 scores tie, and ties go to the lowest index).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo import ops
from eligo.errors import InputError
from eligo.nn import CrossAttention, without_autocast
from eligo.selection import Selection
from eligo.tokens.model.relaxer import Relaxation, add_noise
from eligo.tokens.reducer import Budget, Features, ReducerContext, TokenValues

Embedded = Float[Tensor, "images tokens dim"]
Words = Float[Tensor, "images words question_width"]
WordMask = Bool[Tensor, "images words"] | None

_FIRST_SCORES = 0.1  # scale of the initial scores: untrained scores should have little effect
_SAME = 1e-4  # lower bound of the distance (1 - cosine) of two tokens


class SimpleScorer(nn.Module):
    """`MLP(norm(x))`, width -> dim -> 1: the same for every question."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = _score_mlp(width, dim)

    def forward(self, features: Features, *_question: Tensor | None) -> TokenValues:
        """Return float32 scores."""
        return self.mlp(self.norm(features.float())).squeeze(-1)

    def flops(self, num_tokens: int, _num_words: int) -> float:
        """Return 2 x multiply-adds for one image."""
        return 2.0 * num_tokens * sum(w.numel() for w in self.mlp.parameters() if w.ndim == 2)


class QuestionScorer(nn.Module):
    """Vision tokens attend to the words of the question: `MLP(v + attention(v, q))`.

    Without `question_width` they do not: `MLP(v)`, the same for every question.
    """

    def __init__(self, width: int, question_width: int | None, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = None
        self.vision_norm = nn.LayerNorm(width)
        self.vision_proj = nn.Linear(width, dim)
        if question_width is not None:
            self.question_norm = nn.LayerNorm(question_width)
            self.question_proj = nn.Linear(question_width, dim)
            # The projections before it have biases; a key bias would cancel out.
            self.attention = CrossAttention(dim, dim, dim, num_heads, qkv_bias=False)
        self.mlp = _score_mlp(dim, dim // 2)

    def embed(self, features: Features) -> Embedded:
        """Project the tokens, float32."""
        return self.vision_proj(self.vision_norm(features.float()))

    def score(
        self, embedded: Embedded, question: Words | None = None, question_mask: WordMask = None
    ) -> TokenValues:
        """Return float32 scores of embedded tokens; an empty question adds nothing to them."""
        if self.attention is None:
            return self.mlp(embedded).squeeze(-1)
        assert question is not None
        question = question.float()
        if question_mask is not None:
            # NaN in padding would reach the gradient of the norm as 0 * NaN.
            question = question.masked_fill(~question_mask.unsqueeze(-1), 0.0)
        words = self.question_proj(self.question_norm(question))
        return self.mlp(embedded + self.attention(embedded, words, question_mask)).squeeze(-1)

    def forward(self, features: Features, question: Words, question_mask: WordMask) -> TokenValues:
        """Return float32 scores."""
        return self.score(self.embed(features), question, question_mask)

    def flops(self, num_tokens: int, num_words: int) -> float:
        """Return 2 x multiply-adds for one image."""
        dim, width = self.vision_proj.weight.shape
        per_token = dim * width + dim * (dim // 2) + dim // 2
        if self.attention is None:
            return 2.0 * num_tokens * per_token
        question_width = self.question_proj.weight.shape[1]
        per_token += 2 * dim * dim
        per_word = dim * question_width + 2 * dim * dim
        attention = 2 * num_tokens * num_words * dim
        return 2.0 * (num_tokens * per_token + num_words * per_word + attention)


def _score_mlp(width: int, hidden: int) -> nn.Sequential:
    """Return an MLP width -> hidden -> 1 with outputs near 0."""
    last = nn.Linear(hidden, 1)
    with torch.no_grad():
        last.weight.mul_(_FIRST_SCORES)
        last.bias.zero_()
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), last)


class DensityPeaks(nn.Module):
    """Ranks `s'_i + w log d_i`: lowers tokens that are similar to a better one.

    Scorers give similar scores to similar tokens, so the best by score alone repeat one object. As
    in density-peak clustering (Rodriguez and Laio, Science 2014), `d_i = 1 - max cos(x_i, x_j)`
    over all j with higher s'. `s'_i = s_i + v b_i` with the Bayer order b of the grid, which
    spreads choices evenly over uniform regions. v and w are learned. Not part of the two-stage
    pruning design; `diverse: false` turns it off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.ones(()))
        self.diversity = nn.Parameter(torch.ones(()))

    def forward(
        self, context: ReducerContext, scores: TokenValues, embedded: Embedded, _: Budget
    ) -> TokenValues:
        """Return ranks; 0 in padding."""
        columns = context.grid[:, 1:].clamp_min(1)
        order = ops.ordered_dither(context.positions // columns, context.positions % columns)
        with without_autocast(scores.device):
            units = F.normalize(embedded.float(), dim=-1)
            scores = scores + self.spread * order
            mask = context.mask if context.padded else None
            distinct = ops.distinctness(scores, units @ units.mT, mask)
            ranks = scores + self.diversity * distinct.clamp_min(_SAME).log()
        return ranks.masked_fill(~context.mask, 0.0) if context.padded else ranks


class MarginalRelevance(nn.Module):
    """Ranks `s_i - w max_j cos(x_i, x_j)` over the tokens j picked before i; w > 0 is learned.

    Maximal marginal relevance (Carbonell and Goldstein 1998) with learned relevance: the best k by
    rank are the greedy choice of k, so that it is trained through the relaxed top-k.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(()))

    def forward(
        self, context: ReducerContext, scores: TokenValues, embedded: Embedded, budget: Budget
    ) -> TokenValues:
        """Return ranks; 0 in padding."""
        mask = context.mask if context.padded else None
        width, counts = largest_budget(budget, scores.shape[-1]), set(budget.tolist())
        k = budget if len(counts) > 1 else width  # no copy to the device for equal budgets
        with without_autocast(scores.device):
            units, weight = F.normalize(embedded.float(), dim=-1), self.log_weight.exp()
            cosines = units @ units.mT
            redundancy = ops.greedy_redundancy(scores, cosines, weight, k, mask, width=width)
            ranks = scores - weight * redundancy
        return ranks.masked_fill(~context.mask, 0.0) if context.padded else ranks


Redundancy = Literal["peaks", "mmr"]
"""How tokens that resemble better ones are found."""


def redundancy_of(diverse: bool, kind: Redundancy) -> DensityPeaks | MarginalRelevance | None:
    """Return the module that turns scores into ranks, if there is one."""
    if not diverse:
        return None
    return DensityPeaks() if kind == "peaks" else MarginalRelevance()


def redundancy_flops(module: nn.Module | None, num_tokens: int, dim: int) -> float:
    """Return 2 x multiply-adds of `redundancy_of` for one image: all cosines."""
    return 0.0 if module is None else 2.0 * num_tokens * num_tokens * dim


def rank_tokens(
    peaks: nn.Module | None,
    context: ReducerContext,
    scores: TokenValues,
    embedded: Embedded,
    budget: Budget,
    relaxation: Relaxation | None = None,
) -> TokenValues:
    """Return scores, with noise in training, adjusted by `peaks`."""
    ranks = scores if relaxation is None else add_noise(scores, relaxation)
    return ranks if peaks is None else peaks(context, ranks, embedded, budget)


def real_features(context: ReducerContext) -> Features:
    """Return float32 features, zeros in padding: NaN there would reach gradients as 0 * NaN."""
    if not context.padded:
        return context.features.float()
    return context.features.masked_fill(~context.mask.unsqueeze(-1), 0.0).float()


def question_of(context: ReducerContext, name: str) -> tuple[Words, WordMask]:
    """Return the question and its mask, None if no row is padded."""
    if context.question is None:
        raise InputError(
            f"{name}: got no question, expected the prompt's text, by which this module selects: "
            "give a prompt with words, or use a merger of kind: simple"
        )
    return context.question, context.question_mask if context.question_padded else None


def largest_budget(budget: Budget, num_tokens: int) -> int:
    """Return the largest budget, at most `num_tokens`; free, as budgets are on the CPU."""
    return min(max(budget.tolist(), default=0), num_tokens)


def best_tokens(
    ranks: TokenValues, budget: Budget, context: ReducerContext
) -> tuple[Int[Tensor, "images kept"], bool]:
    """Return the best tokens in raster order, and whether no row is known to be padded."""
    width = largest_budget(budget, ranks.shape[-1])
    if not context.padded and set(budget.tolist()) == {width}:
        return ops.top_k(ranks, width).sort(dim=-1).values, True
    best = ops.top_k(ranks, budget, context.mask, width=width)
    return Selection(best, ranks, context.mask).in_order().indices, False
