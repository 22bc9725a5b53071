"""How the learned parts choose in a training step; `masking` asks this.

Made anew for every step: it remembers what each stage was told and what it chose, for the sparsity
loss and the metrics.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hooks.masking import SoftCut
from eligo.tokens.model.modules import LayerPruners, Merged, TokenMerger
from eligo.tokens.model.scorers import Choice, Relaxation
from eligo.tokens.reducer import ReducerContext


@dataclass(frozen=True)
class Decision:
    """What a stage was given and what it made of it."""

    scores: Float[Tensor, "images tokens"]
    mask: Bool[Tensor, "images tokens"]
    choice: Choice

    def sparsity(self) -> Float[Tensor, ""]:
        """`(mean sigmoid(s) - kept ratio)^2`, mean over images.

        The guide's (kept - target)^2 is constant under exact budgets; this one keeps scores
        centred, so that sigmoid(s), the weight of a folded token, means something.
        """
        count = self.mask.sum(-1).clamp_min(1)
        ratio = self.choice.kept.sum(-1) / count
        return (ops.masked_mean(self.scores.sigmoid(), self.mask) - ratio).square().mean()


@dataclass
class TrainingRelaxer:
    """Stage 1 and the cuts of one training step."""

    merger: TokenMerger | None
    pruners: LayerPruners | None
    relaxation: Relaxation
    size_bias: bool = True
    decisions: dict[int, Decision] = field(default_factory=dict)
    """By layer; 0 is stage 1."""

    def merge(self, context: ReducerContext, budget: Int[Tensor, " images"]) -> Merged:
        """Stage 1."""
        if self.merger is None:
            raise InputError("this training has no merger, but its plan has a stage 1")
        merged = self.merger.relax(context, budget, self.relaxation, size_bias=self.size_bias)
        self.decisions[0] = Decision(merged.scores, context.mask, merged.choice)
        return merged

    def cut(self, layer: int, context: ReducerContext, budget: Int[Tensor, " images"]) -> SoftCut:
        """The cut at the input of a layer."""
        if self.pruners is None:
            raise InputError("this training has no pruners, but its plan has cuts")
        selection, choice, scores = self.pruners[layer].relax(context, budget, self.relaxation)
        self.decisions[layer] = Decision(scores, context.mask, choice)
        mask = choice.mask(self.relaxation.mode)
        return SoftCut(selection, mask)

    def sparsity(self) -> Float[Tensor, ""]:
        """Mean over the stages."""
        return torch.stack([one.sparsity() for one in self.decisions.values()]).mean()
