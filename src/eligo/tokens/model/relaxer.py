"""Differentiable choices of merger and pruners in a training step; `masking` uses them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.reducer import (
    Budget,
    ReducerContext,
    SoftCut,
    SoftMerge,
    TokenMask,
    TokenValues,
)

if TYPE_CHECKING:
    from eligo.tokens.model.layer_pruners import LayerPruners
    from eligo.tokens.model.token_merger import TokenMerger
    from eligo.tokens.model.vision_selector import VisionSelector

MaskMode = Literal["straight_through", "soft"]


@dataclass(frozen=True)
class Relaxation:
    """How soft the choices of one training step are."""

    temperature: float  # T of the relaxed top-k and of the soft assignment
    noise: float  # factor of the Gumbel noise: T / T_start while T falls, then 0
    hard: bool  # merge each token into exactly one centre: after annealing
    mode: MaskMode = "straight_through"  # hard masks with relaxed gradients, or relaxed masks


@dataclass(frozen=True)
class RelaxedTopK:
    """A differentiable top-k."""

    keep: TokenValues  # `p`: degree to which each token is kept; sums to the budget
    kept: TokenMask  # the exact top-k

    def mask(self, mode: MaskMode) -> TokenValues:
        """Return 0 or 1 with the gradient of p, or p."""
        if mode == "soft":
            return self.keep
        return ops.straight_through(self.kept, self.keep)

    def key_bias(self, indices: Int[Tensor, "images kept"]) -> Float[Tensor, "images kept"]:
        """Return `log(1 + p - stopgrad(p))` of kept tokens: 0, with a gradient."""
        keep = ops.gather(self.keep, indices)
        return torch.log1p(keep - keep.detach())


@dataclass(frozen=True)
class Merged(SoftMerge):
    """Result of stage 1 in a training step, with the inputs of its losses."""

    scores: TokenValues  # without noise
    choice: RelaxedTopK


def add_noise(scores: TokenValues, relaxation: Relaxation) -> TokenValues:
    """Return `s + g T / T_start` with Gumbel noise g; in evaluation the scores themselves."""
    if not relaxation.noise:
        return scores
    return scores + relaxation.noise * ops.gumbel_noise(scores)


def relax_top_k(
    ranks: TokenValues, budget: Budget, mask: TokenMask, temperature: float
) -> RelaxedTopK:
    """Return the relaxed and the exact top-k of the ranks."""
    budget = budget.to(ranks.device, non_blocking=True)
    keep = ops.relaxed_top_k(ranks, budget, temperature, mask)
    return RelaxedTopK(keep, ops.top_k_mask(ranks, budget, mask))


@dataclass(frozen=True)
class Decision:
    """Scores and choice of one stage."""

    scores: TokenValues
    mask: TokenMask
    choice: RelaxedTopK

    def sparsity(self) -> Float[Tensor, ""]:
        """Return `(mean sigmoid(s) - kept ratio)^2`, averaged over images.

        Under exact budgets (kept - target)^2 would be constant; this keeps scores centred, so that
        sigmoid(s) is a useful weight of a merged token.
        """
        count = self.mask.sum(-1).clamp_min(1)
        ratio = self.choice.kept.sum(-1) / count
        return (ops.masked_mean(self.scores.sigmoid(), self.mask) - ratio).square().mean()


@dataclass
class TrainingRelaxer:
    """Stage 1 and the cuts of one training step; create a new one for every step."""

    merger: "TokenMerger | VisionSelector | None"
    pruners: "LayerPruners | None"
    relaxation: Relaxation
    size_bias: bool = True
    decisions: dict[int, Decision] = field(default_factory=dict)  # by layer; 0 is stage 1
    members: Float[Tensor, "images kept tokens"] | None = None  # share of a token in each merged

    def merge(self, context: ReducerContext, budget: Budget) -> Merged:
        """Run stage 1."""
        if self.merger is None:
            raise InputError("this training has no merger, but its plan has a stage 1")
        merged = self.merger.relax(context, budget, self.relaxation, size_bias=self.size_bias)
        self.decisions[0] = Decision(merged.scores, context.mask, merged.choice)
        weights = merged.selection.assignment
        if weights is None:  # nothing is merged: a kept token is itself
            own = torch.arange(context.mask.shape[-1], device=context.mask.device)
            weights = (merged.selection.indices.unsqueeze(-1) == own).float()
        weights = weights.detach()
        self.members = weights / weights.sum(-2, keepdim=True).clamp_min(1e-12)
        return merged

    def cut(self, layer: int, context: ReducerContext, budget: Budget) -> SoftCut:
        """Run the cut at the input of a layer."""
        if self.pruners is None:
            raise InputError("this training has no pruners, but its plan has cuts")
        selection, choice, scores = self.pruners[layer].relax(context, budget, self.relaxation)
        self.decisions[layer] = Decision(scores, context.mask, choice)
        return SoftCut(selection, choice.mask(self.relaxation.mode))

    def sparsity(self) -> Float[Tensor, ""]:
        """Return the sparsity loss, averaged over stages."""
        return torch.stack([decision.sparsity() for decision in self.decisions.values()]).mean()
