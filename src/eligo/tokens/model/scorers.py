"""How much each vision token matters: the scorers of both stages, and the relaxed choice by them.

Two-stage pruning guide, "SimpleTokenMerger" and "QuestionAwareTokenMerger / layer pruner" heads.
Departures: a float32 LayerNorm stands before every projection (tower features have outlier
channels, word embeddings a scale of 0.02: raw, the one drowns the other), and all runs in float32
even under autocast (bfloat16 scores tie, and ties go to the lowest index).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo import ops
from eligo.nn import CrossAttention

MaskMode = Literal["straight_through", "soft"]

_FIRST_SCORES = 0.1  # of their usual size: what is not learned yet should decide little


class SimpleScorer(nn.Module):
    """`MLP(norm(x))`, width -> dim -> 1: the same for every question."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = _score_mlp(width, dim)

    def forward(
        self, features: Float[Tensor, "images tokens width"]
    ) -> Float[Tensor, "images tokens"]:
        """Scores, float32."""
        return self.mlp(self.norm(features.float())).squeeze(-1)

    def flops(self, num_tokens: int) -> float:
        """2 x multiply-adds for one image."""
        first, last = self.mlp[0], self.mlp[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        return 2.0 * num_tokens * (first.weight.numel() + last.weight.numel())


class QuestionScorer(nn.Module):
    """Vision tokens look at the words of the question: `MLP(v + attention(v, q))`."""

    def __init__(self, width: int, question_width: int, dim: int, num_heads: int) -> None:
        super().__init__()
        self.vision_norm = nn.LayerNorm(width)
        self.question_norm = nn.LayerNorm(question_width)
        self.vision_proj = nn.Linear(width, dim)
        self.question_proj = nn.Linear(question_width, dim)
        # The projections before it have biases; a key bias of its own would be cancelled.
        self.attention = CrossAttention(dim, dim, dim, num_heads, qkv_bias=False)
        self.mlp = _score_mlp(dim, dim // 2)

    def look(
        self, features: Float[Tensor, "images tokens width"]
    ) -> Float[Tensor, "images tokens dim"]:
        """What is judged of each token, float32."""
        return self.vision_proj(self.vision_norm(features.float()))

    def judge(
        self,
        looks: Float[Tensor, "images tokens dim"],
        question: Float[Tensor, "images words question_width"],
        question_mask: Bool[Tensor, "images words"] | None,
    ) -> Float[Tensor, "images tokens"]:
        """Scores, float32; an empty question leaves those of the tokens alone."""
        question = question.float()
        if question_mask is not None:
            # A NaN in padding would reach the gradient of the norm as 0 * NaN.
            question = question.masked_fill(~question_mask.unsqueeze(-1), 0.0)
        words = self.question_proj(self.question_norm(question))
        return self.mlp(looks + self.attention(looks, words, question_mask)).squeeze(-1)

    def forward(
        self,
        features: Float[Tensor, "images tokens width"],
        question: Float[Tensor, "images words question_width"],
        question_mask: Bool[Tensor, "images words"] | None,
    ) -> Float[Tensor, "images tokens"]:
        """`look`, then `judge`."""
        return self.judge(self.look(features), question, question_mask)

    def flops(self, num_tokens: int, num_words: int) -> float:
        """2 x multiply-adds for one image."""
        dim, width = self.vision_proj.weight.shape
        question_width = self.question_proj.weight.shape[1]
        per_token = dim * width + 2 * dim * dim + dim * (dim // 2) + dim // 2
        per_word = dim * question_width + 2 * dim * dim
        attention = 2 * num_tokens * num_words * dim
        return 2.0 * (num_tokens * per_token + num_words * per_word + attention)


def _score_mlp(width: int, hidden: int) -> nn.Sequential:
    """width -> hidden -> 1, beginning near 0."""
    last = nn.Linear(hidden, 1)
    with torch.no_grad():
        last.weight.mul_(_FIRST_SCORES)
        last.bias.zero_()
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), last)


@dataclass(frozen=True)
class Relaxation:
    """How soft the choices of one training step are."""

    temperature: float
    """T of the relaxed top-k and of the soft assignment."""
    noise: float
    """Factor on the Gumbel noise: T / T_start while T falls; 0 after that, and in evaluation."""
    hard: bool
    """Whether tokens are folded wholly into one centre: after annealing."""
    mode: MaskMode = "straight_through"
    """Hard masks with the gradient of the relaxed ones, or the relaxed ones themselves."""


@dataclass(frozen=True)
class Choice:
    """A top-k that can be learned."""

    ranks: Float[Tensor, "images tokens"]
    """What was ranked: scores with noise."""
    keep: Float[Tensor, "images tokens"]
    """`p`: how much each token is kept; sums to the budget."""
    kept: Bool[Tensor, "images tokens"]
    """The exact top-k."""

    def mask(self, mode: MaskMode) -> Float[Tensor, "images tokens"]:
        """`m`: 0 or 1 with the gradient of p, or p."""
        return (
            ops.straight_through(self.kept, self.keep) if mode == "straight_through" else self.keep
        )


def perturb(
    scores: Float[Tensor, "images tokens"], relaxation: Relaxation
) -> Float[Tensor, "images tokens"]:
    """`s' = s + g T / T_start`, with Gumbel noise g; in evaluation the scores themselves."""
    if not relaxation.noise:
        return scores
    return scores + relaxation.noise * ops.gumbel_noise(scores)


def choose(
    ranks: Float[Tensor, "images tokens"],
    budget: Int[Tensor, " images"],
    mask: Bool[Tensor, "images tokens"],
    temperature: float,
) -> Choice:
    """`p = relaxed top-k` of the ranks; kept: their exact top-k."""
    budget = budget.to(ranks.device, non_blocking=True)
    return Choice(
        ranks=ranks,
        keep=ops.relaxed_top_k(ranks, budget, temperature, mask),
        kept=ops.top_k_mask(ranks, budget, mask),
    )
