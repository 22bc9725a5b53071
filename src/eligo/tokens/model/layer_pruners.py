"""The layer pruners: stage 2 of the two-stage pruning design (docs/sources.md).

Departures: budgets are exact (top-k) instead of a threshold of 0.5, and ranks are density peaks or
marginal relevance (`redundancy`), not scores alone; `diverse: false` turns the latter off.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from eligo.config import Config
from eligo.nn import allow_tf32_for, without_autocast
from eligo.selection import Selection
from eligo.tokens.model.base import PretrainedModule, Shapes
from eligo.tokens.model.relaxer import Relaxation, RelaxedTopK, relax_top_k
from eligo.tokens.model.scorers import (
    MarginalRelevance,
    QuestionScorer,
    Redundancy,
    best_tokens,
    question_of,
    rank_tokens,
    real_features,
    redundancy_flops,
    redundancy_of,
)
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenValues, Where

PrunerKind = Literal["cross_attention", "simple"]


class PrunersShape(Config):
    """Sizes of `LayerPruners`."""

    layers: tuple[int, ...] = Field(min_length=1)
    """Layers of the language model at whose input tokens are dropped."""
    kind: PrunerKind = "cross_attention"
    """Whether scores depend on the question: by cross-attention to it, or not at all (simple)."""
    width: int = Field(ge=1)
    """Width of the language model."""
    dim: int = Field(default=512, ge=2)
    """Hidden width."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of the attention to the question."""
    diverse: bool = True
    """Whether tokens similar to a better one are ranked lower."""
    redundancy: Redundancy = "peaks"
    """How these are found: density peaks, or maximal marginal relevance."""


class LayerPruner(nn.Module):
    """Head of one cut: scores the vision tokens at a layer's input, usually by the question."""

    name = "pruner"
    where: frozenset[Where] = frozenset({"inside"})
    capturable = True
    in_raster_order = True

    def __init__(
        self,
        width: int,
        dim: int,
        num_heads: int,
        *,
        kind: PrunerKind = "cross_attention",
        diverse: bool = True,
        redundancy: Redundancy = "peaks",
    ) -> None:
        super().__init__()
        self.kind: PrunerKind = kind
        self.num_heads = num_heads
        words = width if kind == "cross_attention" else None
        self.scorer = QuestionScorer(width, words, dim, num_heads)
        self.peaks = redundancy_of(diverse, redundancy)

    @property
    def width(self) -> int:
        """Width of the language model's states."""
        return self.scorer.vision_proj.in_features

    @property
    def needs(self) -> frozenset[Need]:
        """The question, for `cross_attention`."""
        return frozenset() if self.kind == "simple" else frozenset({"question"})

    def shape(self, layers: tuple[int, ...]) -> PrunersShape:
        """Return the sizes of heads like this one, for these layers."""
        return PrunersShape(
            layers=layers,
            kind=self.kind,
            width=self.width,
            dim=self.scorer.vision_proj.out_features,
            num_heads=self.num_heads,
            diverse=self.peaks is not None,
            redundancy="mmr" if isinstance(self.peaks, MarginalRelevance) else "peaks",
        )

    def _scores(self, context: ReducerContext) -> tuple[Tensor, Tensor]:
        """Return scores, float32, 0 in padding, and the embedded tokens."""
        with without_autocast(context.features.device):
            embedded = self.scorer.embed(real_features(context))
            question = question_of(context, self.name) if self.needs else ()
            scores = self.scorer.score(embedded, *question)
        return scores.masked_fill(~context.mask, 0.0) if context.padded else scores, embedded

    def select(self, context: ReducerContext, budget: Budget) -> Selection:
        """Keep the best tokens in raster order; drop the rest."""
        with allow_tf32_for(context.features.dtype):
            ranks = rank_tokens(self.peaks, context, *self._scores(context), budget)
        return Selection(best_tokens(ranks, budget, context)[0], ranks, context.mask)

    def relax(
        self, context: ReducerContext, budget: Budget, relaxation: Relaxation
    ) -> tuple[Selection, RelaxedTopK, TokenValues]:
        """Return the training form of `select`: with noise, a relaxed top-k, and the scores."""
        scores, embedded = self._scores(context)
        ranks = rank_tokens(self.peaks, context, scores, embedded, budget, relaxation)
        choice = relax_top_k(ranks, budget, context.mask, relaxation.temperature)
        best = best_tokens(ranks, budget, context)[0]
        return Selection(best, ranks, context.mask), choice, scores

    def flops(self, num_tokens: int, num_words: int, *_: int) -> float:
        """Count 2 x multiply-adds of one image."""
        dim = self.scorer.vision_proj.out_features
        peaks = redundancy_flops(self.peaks, num_tokens, dim)
        return self.scorer.flops(num_tokens, num_words) + peaks


class LayerPruners(PretrainedModule):
    """The heads of all cuts; `pruners[layer]` is the one of a layer."""

    file_name = "layer_pruners"
    shape_type = PrunersShape

    def __init__(self, shape: PrunersShape) -> None:
        super().__init__(shape)
        self.shape: PrunersShape = shape
        sizes = (shape.width, shape.dim, shape.num_heads)
        options = shape.model_dump(include={"kind", "diverse", "redundancy"})
        self.heads = nn.ModuleDict(
            {str(layer): LayerPruner(*sizes, **options) for layer in shape.layers}
        )

    def __getitem__(self, layer: int) -> LayerPruner:
        return self.heads[str(layer)]  # pyright: ignore[reportReturnType]

    @staticmethod
    def shape_from_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Return the number of heads from the config, layers and widths from the weights."""
        projections = {
            name.split(".")[1]: shape
            for name, shape in shapes.items()
            if "vision_proj" in name and len(shape) == 2
        }
        dim, width = next(iter(projections.values()))
        pruners = run.get("pruners") or {}
        return {
            "layers": sorted(map(int, projections)),
            "kind": "cross_attention" if any("question" in name for name in shapes) else "simple",
            "width": width,
            "dim": dim,
            "num_heads": pruners.get("num_heads", 4),
            "diverse": any("peaks" in name for name in shapes),
            "redundancy": pruners.get("redundancy", "peaks"),
        }
