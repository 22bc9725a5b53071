"""The learned parts that choose: the token merger (stage 1) and the layer pruners (stage 2).

Two-stage pruning guide. Departures, and why:
- folding divides by the weights, in the tower's own space: the guide's sum inflates norms beyond
  what the frozen projector knows;
- assignment logits are scaled cosines: plain dots are near uniform at T = 1. Query and key start
  from the same weights, so that from the first step a token goes where it looks most alike;
- budgets are exact (top-k), not a threshold of 0.5: counts, and so costs, are known beforehand;
- both stages keep peaks (see `peaks`), not simply the best; `diverse: false` is the guide's way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from eligo import ops
from eligo.config import Config
from eligo.errors import InputError
from eligo.nn import SimilarityScale, allow_tf32_for, without_autocast
from eligo.selection import Selection
from eligo.tokens.model.part import Part, Shapes
from eligo.tokens.model.peaks import Peaks, peak_flops
from eligo.tokens.model.scorers import (
    Choice,
    QuestionScorer,
    Relaxation,
    SimpleScorer,
    choose,
    perturb,
)
from eligo.tokens.reducer import Need, ReducerContext, Where

MergerKind = Literal["simple", "question_aware"]

_START_SCALE = 10.0  # cosines of neighbouring patches differ by a tenth


class MergerShape(Config):
    """What builds a `TokenMerger`."""

    kind: MergerKind = "simple"
    """Whether the question has a say in what is kept."""
    width: int = Field(ge=1)
    """Width of the vision tower's features."""
    question_width: int | None = Field(default=None, ge=1)
    """Width of the language model's embeddings; only where the question has a say."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of the attention to the question."""
    diverse: bool = True
    """Whether a token that looks like a better one is marked down."""

    @model_validator(mode="after")
    def _question_has_a_width(self) -> "MergerShape":
        if (self.kind == "question_aware") != (self.question_width is not None):
            raise ValueError("kind: question_aware and a question_width go together")
        return self


@dataclass(frozen=True)
class Merged:
    """What stage 1 makes of an image in a training step."""

    features: Float[Tensor, "images kept width"]
    """Tower features after folding, in raster order."""
    selection: Selection
    """Centres in raster order, ranks without noise, weights of the fold."""
    scores: Float[Tensor, "images tokens"]
    """What the scorer said."""
    key_bias: Float[Tensor, "images kept"]
    """For the attention of every layer: `log z` (if asked for) + `log(1 + p - stopgrad(p))`."""
    choice: Choice


class TokenMerger(Part):
    """N tower features -> M: the best M stay, all others are folded into the most alike of them.

    Centres are the peaks of the scores, looks being `Q x` (without `diverse`: the best). Row i of
    the assignment is a softmax over the centres j of `scale cos(Q x_i, K x_j) / T`; a centre keeps
    itself. With `u = 1` for centres and `sigmoid(s_i)` for the others, `z_j = sum_i A_ij u_i` and
    `y_j = sum_i A_ij u_i x_i / z_j`. At inference, and in training after annealing, A is its
    one-hot argmax.

    >>> merger = TokenMerger(MergerShape(width=8, dim=16))
    >>> merger.name, sorted(merger.needs)
    ('merger', [])
    """

    file_name = "token_merger"
    shape_type = MergerShape
    name = "merger"
    where: frozenset[Where] = frozenset({"before"})
    capturable = True  # `select` of even rows waits for nothing: see `inside.replay`
    in_raster_order = True  # what `select` gives

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
        self.peaks = Peaks() if shape.diverse else None

    @property
    def needs(self) -> frozenset[Need]:
        """The question, if it has a say."""
        return frozenset() if self.shape.kind == "simple" else frozenset({"question"})

    def scores(self, context: ReducerContext) -> Float[Tensor, "images tokens"]:
        """How much each token matters, float32; 0 in padding."""
        return self._scores(context, _real(context))

    def _scores(self, context: ReducerContext, features: Tensor) -> Tensor:
        with without_autocast(features.device):
            if isinstance(self.scorer, SimpleScorer):
                scores = self.scorer(features)
            else:
                scores = self.scorer(features, *_question(context, self.name))
        return scores.masked_fill(~context.mask, 0.0) if context.padded else scores

    def _looks(self, features: Tensor) -> Float[Tensor, "images tokens dim"]:
        """`Q x`, float32: what tokens are compared by."""
        with without_autocast(features.device):
            return self.query_proj(features)

    def select(self, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
        """The best centres, raster order, every other token folded into one of them."""
        features = _real(context)
        with allow_tf32_for(context.features.dtype):
            scores, looks = self._scores(context, features), self._looks(features)
            ranks = scores if self.peaks is None else self.peaks(context, scores, looks)
            centres, is_even = _best(ranks, budget, context)
            assignment = self._assign(
                context, features, scores, looks, centres, hard=True, padded=not is_even
            )
        return Selection(centres, ranks, context.mask, assignment)

    def relax(
        self,
        context: ReducerContext,
        budget: Int[Tensor, " images"],
        relaxation: Relaxation,
        *,
        size_bias: bool = True,
    ) -> Merged:
        """The training form: the same choice, with noise, temperature and gradients."""
        features = _real(context)
        scores, looks = self._scores(context, features), self._looks(features)
        ranks = perturb(scores, relaxation)
        if self.peaks is not None:
            ranks = self.peaks(context, ranks, looks)
        choice = choose(ranks, budget, context.mask, relaxation.temperature)
        centres = ops.align_left(choice.kept, _widest(budget, scores))
        temperature, hard = relaxation.temperature, relaxation.hard
        assignment = self._assign(
            context, features, scores, looks, centres, temperature=temperature, hard=hard
        )
        selection = Selection(centres, ranks, context.mask, assignment)
        keep = ops.gather(choice.keep, centres)
        key_bias = torch.log1p(keep - keep.detach())
        if size_bias:
            sizes = selection.sizes
            key_bias = key_bias + torch.where(sizes > 0, sizes, 1.0).log()
        folded = selection.fold(context.features)
        return Merged(folded, selection, scores, key_bias, choice)

    def _assign(
        self,
        context: ReducerContext,
        features: Tensor,
        scores: Tensor,
        looks: Tensor,
        centres: Tensor,
        *,
        hard: bool,
        temperature: float = 1.0,
        padded: bool = True,
    ) -> Float[Tensor, "images kept tokens"]:
        mask = context.mask if context.padded else None
        with without_autocast(features.device):
            keys = self.key_proj(ops.gather(features, centres, padded=padded))
            logits = self.scale(keys, looks)
            if temperature != 1.0:
                logits = logits / temperature
            assignment = ops.soft_assignment(logits, centres, mask, hard=hard, padded=padded)
            is_centre = ops.kept_mask(centres, scores.shape[-1])
            weights = scores.sigmoid().masked_fill(is_centre, 1.0)
            if context.sizes is not None:  # what stands for many weighs as many
                weights = weights * context.sizes
            return assignment * weights.unsqueeze(-2)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """2 x multiply-adds of one image: scores, look-alikes, assignment, fold."""
        del question_width  # the scorer knows
        if isinstance(self.scorer, SimpleScorer):
            scores = self.scorer.flops(num_tokens)
        else:
            scores = self.scorer.flops(num_tokens, num_words)
        dim = self.shape.dim
        projections = (num_tokens + budget) * width * dim
        peaks = peak_flops(num_tokens, dim) if self.shape.diverse else 0.0
        return scores + peaks + 2.0 * (projections + budget * num_tokens * (dim + width))

    @staticmethod
    def shape_of_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Kind and heads from the config, widths from the weights."""
        merger = run.get("merger") or {}
        dim, width = shapes["query_proj.weight"]
        found = {"kind": merger.get("kind", "simple"), "width": width, "dim": dim}
        found["diverse"] = "peaks.spread" in shapes
        if "scorer.question_norm.weight" in shapes:
            found["question_width"] = shapes["scorer.question_norm.weight"][0]
            found["num_heads"] = merger.get("num_heads", 4)
        return found


class PrunersShape(Config):
    """What builds `LayerPruners`."""

    layers: tuple[int, ...] = Field(min_length=1)
    """Layers of the language model at whose input tokens are dropped."""
    width: int = Field(ge=1)
    """Width of the language model."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of the attention to the question."""
    diverse: bool = True
    """Whether a token that looks like a better one is marked down."""


class LayerPruner(nn.Module):
    """One head: which of the vision tokens at a layer's input the question still needs."""

    name = "pruner"
    where: frozenset[Where] = frozenset({"inside"})
    capturable = True
    in_raster_order = True
    needs: frozenset[Need] = frozenset({"question"})

    def __init__(self, width: int, dim: int, num_heads: int, *, diverse: bool = True) -> None:
        super().__init__()
        self.scorer = QuestionScorer(width, width, dim, num_heads)
        self.peaks = Peaks() if diverse else None

    def shape(self, layers: tuple[int, ...]) -> PrunersShape:
        """What builds heads like this one, for these layers."""
        return PrunersShape(
            layers=layers,
            width=self.scorer.vision_proj.in_features,
            dim=self.scorer.vision_proj.out_features,
            num_heads=self.scorer.attention.num_heads,
            diverse=self.peaks is not None,
        )

    def scores(self, context: ReducerContext) -> Float[Tensor, "images tokens"]:
        """How much each token matters, float32; 0 in padding."""
        return self._judge(context)[0]

    def _judge(
        self, context: ReducerContext
    ) -> tuple[Float[Tensor, "images tokens"], Float[Tensor, "images tokens dim"]]:
        """Scores, and what was judged."""
        with without_autocast(context.features.device):
            looks = self.scorer.look(_real(context))
            scores = self.scorer.judge(looks, *_question(context, self.name))
        return scores.masked_fill(~context.mask, 0.0) if context.padded else scores, looks

    def select(self, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
        """The best `budget` tokens in raster order; the rest is dropped."""
        with allow_tf32_for(context.features.dtype):
            scores, looks = self._judge(context)
            ranks = scores if self.peaks is None else self.peaks(context, scores, looks)
        return Selection(_best(ranks, budget, context)[0], ranks, context.mask)

    def relax(
        self, context: ReducerContext, budget: Int[Tensor, " images"], relaxation: Relaxation
    ) -> tuple[Selection, Choice, Float[Tensor, "images tokens"]]:
        """The training form: ranked with noise, the mask to learn by, and the scores."""
        scores, looks = self._judge(context)
        ranks = perturb(scores, relaxation)
        if self.peaks is not None:
            ranks = self.peaks(context, ranks, looks)
        choice = choose(ranks, budget, context.mask, relaxation.temperature)
        best = _best(ranks, budget, context)[0]
        return Selection(best, ranks, context.mask), choice, scores

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """2 x multiply-adds of one image."""
        del width, question_width, budget  # the scorer knows, and dropping is free
        dim = self.scorer.vision_proj.out_features
        peaks = 0.0 if self.peaks is None else peak_flops(num_tokens, dim)
        return self.scorer.flops(num_tokens, num_words) + peaks


class LayerPruners(Part):
    """The heads of all cuts; `pruners[layer]` is the one of a layer."""

    file_name = "layer_pruners"
    shape_type = PrunersShape

    def __init__(self, shape: PrunersShape) -> None:
        super().__init__(shape)
        self.shape: PrunersShape = shape
        self.heads = nn.ModuleDict(
            {
                str(layer): LayerPruner(
                    shape.width, shape.dim, shape.num_heads, diverse=shape.diverse
                )
                for layer in shape.layers
            }
        )

    def __getitem__(self, layer: int) -> LayerPruner:
        head = self.heads[str(layer)]
        assert isinstance(head, LayerPruner)
        return head

    @staticmethod
    def shape_of_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Heads from the config, layers and widths from the weights."""
        found = {
            name.split(".")[1]: shape
            for name, shape in shapes.items()
            if "vision_proj" in name and len(shape) == 2
        }
        dim, width = next(iter(found.values()))
        return {
            "layers": sorted(map(int, found)),
            "width": width,
            "dim": dim,
            "num_heads": (run.get("pruners") or {}).get("num_heads", 4),
            "diverse": any("peaks" in name for name in shapes),
        }


def _real(context: ReducerContext) -> Tensor:
    """Float32 features, zeros in padding: a NaN there would reach gradients as 0 * NaN."""
    if not context.padded:
        return context.features.float()
    return context.features.masked_fill(~context.mask.unsqueeze(-1), 0.0).float()


def _question(
    context: ReducerContext, name: str
) -> tuple[Float[Tensor, "images words width"], Bool[Tensor, "images words"] | None]:
    if context.question is None:
        raise InputError(
            f"{name}: got no question, expected the prompt's text: this part was trained to keep "
            "what a question needs; give a prompt with words, or use a merger of kind: simple"
        )
    return context.question, context.question_mask if context.question_padded else None


def _widest(budget: Tensor, scores: Tensor) -> int:
    """The largest budget: free, as budgets come on the CPU."""
    return min(max(budget.tolist(), default=0), scores.shape[-1])


def _best(ranks: Tensor, budget: Tensor, context: ReducerContext) -> tuple[Tensor, bool]:
    """Indices of the best in raster order; and whether it is known that no row is padded."""
    width = _widest(budget, ranks)
    is_even = not context.padded and set(budget.tolist()) == {width}
    if is_even:
        return ops.top_k(ranks, width).sort(dim=-1).values, True
    best = ops.top_k(ranks, budget, context.mask, width=width)
    return Selection(best, ranks, context.mask).in_order().indices, False
