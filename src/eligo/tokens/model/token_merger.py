"""The token merger: stage 1 of the two-stage pruning design (docs/sources.md). Departures:

- merging averages by weight, in the tower's space: a sum inflates norms beyond the training
  range of the frozen projector;
- assignment logits are scaled cosines: dot products are nearly uniform at T = 1. Query and key
  start from the same weights, so that a token is initially merged into the most similar centre;
- budgets are exact (top-k) instead of a threshold of 0.5: counts and costs are known in advance;
- ranks are density peaks or marginal relevance (`redundancy`), not scores alone; `diverse: false`
  turns this off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from eligo import ops
from eligo.config import Config
from eligo.nn import SimilarityScale, allow_tf32_for, without_autocast
from eligo.selection import Selection
from eligo.tokens.model.base import PretrainedModule, Shapes
from eligo.tokens.model.relaxer import Relaxation, RelaxedTopK, relax_top_k
from eligo.tokens.model.scorers import (
    QuestionScorer,
    Redundancy,
    SimpleScorer,
    best_tokens,
    largest_budget,
    question_of,
    rank_tokens,
    real_features,
    redundancy_flops,
    redundancy_of,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, SoftMerge, TokenValues, Where

MergerKind = Literal["simple", "question_aware"]

_START_SCALE = 10.0  # cosines of neighbouring patches differ by about 0.1


class MergerShape(Config):
    """Sizes of a `TokenMerger`."""

    kind: MergerKind = "simple"
    """Whether scores depend on the question."""
    width: int = Field(ge=1)
    """Width of the vision tower's features."""
    question_width: int | None = Field(default=None, ge=1)
    """Width of the language model's embeddings; only for `question_aware`."""
    dim: int = Field(default=512, ge=2)
    """Hidden width."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of the attention to the question."""
    diverse: bool = True
    """Whether tokens similar to a better one are ranked lower."""
    redundancy: Redundancy = "peaks"
    """How these are found: density peaks, or maximal marginal relevance."""

    @model_validator(mode="after")
    def _question_has_a_width(self) -> "MergerShape":
        if (self.kind == "question_aware") != (self.question_width is not None):
            raise ValueError("kind: question_aware and a question_width go together")
        return self


@dataclass(frozen=True)
class Merged(SoftMerge):
    """Result of stage 1 in a training step, with the inputs of its losses."""

    scores: TokenValues  # without noise
    choice: RelaxedTopK


class TokenMerger(PretrainedModule):
    """N tower features -> M: the best M are centres, all others are merged into similar ones.

    Row i of the assignment is a softmax over the centres j of `scale cos(Q x_i, K x_j) / T`; a
    centre keeps itself. With `u = 1` for centres and `sigmoid(s_i)` for the others,
    `z_j = sum_i A_ij u_i` and `y_j = sum_i A_ij u_i x_i / z_j`. At inference, and in training after
    annealing, A is its one-hot argmax.

    >>> merger = TokenMerger(MergerShape(width=8, dim=16))
    >>> merger.name, sorted(merger.needs)
    ('merger', [])
    """

    file_name = "token_merger"
    shape_type = MergerShape
    name = "merger"
    where: frozenset[Where] = frozenset({"before"})
    capturable = True  # as a CUDA graph: see `hooks.cuda_graphs`
    in_raster_order = True  # the result of `select`

    def __init__(self, shape: MergerShape) -> None:
        super().__init__(shape)
        self.shape: MergerShape = shape
        if shape.question_width is None:
            self.scorer = SimpleScorer(shape.width, shape.dim)
        else:
            self.scorer = QuestionScorer(
                shape.width, shape.question_width, shape.dim, shape.num_heads
            )
        self.query_proj = nn.Linear(shape.width, shape.dim, bias=False)
        self.key_proj = nn.Linear(shape.width, shape.dim, bias=False)
        with torch.no_grad():
            self.key_proj.weight.copy_(self.query_proj.weight)
        self.scale = SimilarityScale("cosine", learnable=True, init=_START_SCALE)
        self.peaks = redundancy_of(shape.diverse, shape.redundancy)

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.shape.width

    @property
    def needs(self) -> frozenset[Need]:
        """The question, for `question_aware`."""
        return frozenset() if self.shape.kind == "simple" else frozenset({"question"})

    def scores(self, context: ReducerContext) -> TokenValues:
        """Return the importance of each token, float32; 0 in padding."""
        return self._scores(context, real_features(context))[0]

    def _scores(self, context: ReducerContext, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and `Q x`, by which tokens are compared."""
        question = question_of(context, self.name) if self.needs else ()
        with without_autocast(features.device):
            scores = self.scorer(features, *question)
            queries = self.query_proj(features)
        return scores.masked_fill(~context.mask, 0.0) if context.padded else scores, queries

    def select(self, context: ReducerContext, budget: Budget) -> Selection:
        """Keep the best centres in raster order; every other token is merged into one of them."""
        features = real_features(context)
        with allow_tf32_for(context.features.dtype):
            scores, queries = self._scores(context, features)
            ranks = rank_tokens(self.peaks, context, scores, queries, budget)
            centres, is_even = best_tokens(ranks, budget, context)
            parts = (features, scores, queries, centres)
            assignment = self._assign(context, *parts, padded=not is_even)
        return Selection(centres, ranks, context.mask, assignment)

    def relax(
        self,
        context: ReducerContext,
        budget: Budget,
        relaxation: Relaxation,
        *,
        size_bias: bool = True,
    ) -> Merged:
        """Return the training form of `select`, with noise, temperature and gradients."""
        features = real_features(context)
        scores, queries = self._scores(context, features)
        ranks = rank_tokens(self.peaks, context, scores, queries, budget, relaxation)
        choice = relax_top_k(ranks, budget, context.mask, relaxation.temperature)
        centres = ops.align_left(choice.kept, largest_budget(budget, scores.shape[-1]))
        assignment = self._assign(context, features, scores, queries, centres, relaxation)
        selection = Selection(centres, ranks, context.mask, assignment)
        keep = ops.gather(choice.keep, centres)
        key_bias = torch.log1p(keep - keep.detach())
        if size_bias:
            sizes = selection.sizes
            key_bias = key_bias + torch.where(sizes > 0, sizes, 1.0).log()
        return Merged(selection.fold(context.features), selection, key_bias, scores, choice)

    def _assign(
        self,
        context: ReducerContext,
        features: Tensor,
        scores: Tensor,
        queries: Tensor,
        centres: Tensor,
        relaxation: Relaxation | None = None,
        padded: bool = True,
    ) -> Float[Tensor, "images kept tokens"]:
        """Return the weights with which tokens are merged; hard without a relaxation."""
        mask = context.mask if context.padded else None
        with without_autocast(features.device):
            keys = self.key_proj(ops.gather(features, centres, padded=padded))
            logits = self.scale(keys, queries)
            if relaxation is not None and relaxation.temperature != 1.0:
                logits = logits / relaxation.temperature
            hard = relaxation is None or relaxation.hard
            assignment = ops.soft_assignment(logits, centres, mask, hard=hard, padded=padded)
            is_centre = ops.kept_mask(centres, scores.shape[-1])
            weights = scores.sigmoid().masked_fill(is_centre, 1.0)
            if context.sizes is not None:  # a merged token weighs as much as the tokens in it
                weights = weights * context.sizes
            return assignment * weights.unsqueeze(-2)

    def flops(self, num_tokens: int, num_words: int, width: int, _: int, budget: int) -> float:
        """Count 2 x multiply-adds of one image: scores, cosines, assignment, fold."""
        dim = self.shape.dim
        projections = (num_tokens + budget) * width * dim
        peaks = redundancy_flops(self.peaks, num_tokens, dim)
        scores = self.scorer.flops(num_tokens, num_words)
        return scores + peaks + 2.0 * (projections + budget * num_tokens * (dim + width))

    @staticmethod
    def shape_from_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Return kind and number of heads from the config, widths from the weights."""
        merger = run.get("merger") or {}
        dim, width = shapes["query_proj.weight"]
        fields = {"kind": merger.get("kind", "simple"), "width": width, "dim": dim}
        fields["diverse"] = any(name.startswith("peaks.") for name in shapes)
        fields["redundancy"] = merger.get("redundancy", "peaks")
        if "scorer.question_norm.weight" in shapes:
            fields["question_width"] = shapes["scorer.question_norm.weight"][0]
            fields["num_heads"] = merger.get("num_heads", 4)
        return fields
