"""Base class of all training-free methods, and helpers that build a `Selection`.

A method has no state, so its config is also its `Reducer`: `ToMe(rounds=4)` is read from a YAML
file, printed in tables, and selects tokens.
"""

from abc import abstractmethod
from collections.abc import Mapping, Set
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.config import Config
from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.reducer import (
    Budget,
    Features,
    Need,
    ReducerContext,
    TokenIndex,
    TokenMask,
    TokenValues,
    Where,
)

Space = Mapping[str, list[Any]]
"""Options, each with the values to try."""


class Method(Config):
    """A training-free reducer: stateless, without gradients, random only through its seed."""

    places: ClassVar[frozenset[Where]]
    """Where it can be used. Methods that merge tokens only work before the language model."""
    reads: ClassVar[frozenset[Need]] = frozenset()
    """Optional fields of the context that it reads."""
    space: ClassVar[Space] = {}
    """Options to tune; `proposals` draws from the product of the values."""
    before: ClassVar[Mapping[str, Any]] = {}
    """Options with which a method that works inside the language model also works before it."""

    name: Any
    """Each method narrows this to its own literal, the discriminator in YAML."""

    @property
    def where(self) -> Set[Where]:
        """Where it can be used."""
        return self.places

    @property
    def needs(self) -> Set[Need]:
        """Optional fields of the context that it reads."""
        return self.reads

    def describe(self) -> dict[str, Any]:
        """Return name and options as plain values for `build(**description)`."""
        return self.model_dump(mode="json")

    @torch.no_grad()
    def select(self, context: ReducerContext, budget: Budget) -> Selection:
        """Keep exactly `budget[i]` tokens of image i (all, if it has fewer).

        Budgets on the CPU need no device sync: only the largest is read there.
        """
        for need in sorted(self.needs):
            if getattr(context, need) is None:
                raise InputError(
                    f"{self.name}: the context has no {need}, which this method reads; expected "
                    f"use {' or '.join(sorted(self.where))} the language model"
                )
        if values_are_free(budget) and bool((budget < 0).any()):
            raise InputError(f"{self.name}: got budgets {budget.tolist()}; expected none below 0")
        width = min(int(budget.max()), context.mask.shape[-1]) if len(budget) else 0
        budget = budget.to(context.mask.device, torch.int64, non_blocking=True)
        return self.keep(context, torch.minimum(budget, context.mask.sum(-1)), width)

    @abstractmethod
    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Implement `select`; budgets exceed neither `width` nor the real tokens of their row."""


def keep_best(
    context: ReducerContext, scores: TokenValues, budget: Budget, width: int
) -> Selection:
    """Select the tokens with the highest scores, best first."""
    scores = scores.float().masked_fill(~context.mask, 0.0)
    return Selection(ops.top_k(scores, budget, context.mask, width=width), scores, context.mask)


def keep_marked(context: ReducerContext, kept: TokenMask, width: int) -> Selection:
    """Select marked tokens in raster order; the mark is the score."""
    return Selection(ops.align_left(kept, width), kept.float(), context.mask)


def fold_into(
    context: ReducerContext,
    indices: Int[Tensor, "images kept"],
    scores: TokenValues,
    destination: TokenIndex,
) -> Selection:
    """Merge each token into column `destination` of `indices` (-1: dropped), weighted by size."""
    columns = torch.arange(indices.shape[-1], device=indices.device)
    folded = destination.unsqueeze(-2) == columns.unsqueeze(-1)  # (images, kept, tokens)
    weights = sizes_of(context).unsqueeze(-2).expand(folded.shape)
    return Selection(indices, scores, context.mask, torch.where(folded, weights, 0.0))


def evenly(mask: TokenMask, count: Int[Tensor, " images"]) -> TokenMask:
    """Mark `count` real tokens of each row, evenly spaced, including the first."""
    available = mask.sum(-1, keepdim=True).clamp_min(1)
    rank = mask.long().cumsum(-1) - 1
    count = count.unsqueeze(-1)
    return mask & (rank * count // available > (rank - 1) * count // available)


def sizes_of(context: ReducerContext) -> TokenValues:
    """Return how many tokens were merged into each; 0 for padding."""
    if context.sizes is None:
        return context.mask.float()
    return context.sizes.float().masked_fill(~context.mask, 0.0)


def unit_features(context: ReducerContext, features: Features | None = None) -> Features:
    """Return float32 features (default: those of the context) of length 1; zeros in padding."""
    features = context.features if features is None else features
    return F.normalize(features.float().masked_fill(~context.mask.unsqueeze(-1), 0.0), dim=-1)


def similarities(context: ReducerContext) -> Float[Tensor, "images tokens tokens"]:
    """Return cosines of all pairs of tokens: exactly symmetric, exactly 1 on the diagonal."""
    units = unit_features(context)
    # The two triangles of a product round differently, depending on the batch. Without symmetry,
    # rounding instead of the lowest index would decide between mutual nearest neighbours.
    upper = (units @ units.transpose(-1, -2)).triu(1)
    diagonal = torch.eye(units.shape[-2], dtype=torch.bool, device=units.device)
    return (upper + upper.transpose(-1, -2)).masked_fill(diagonal, 1.0)


def question_similarities(
    method: str, context: ReducerContext
) -> tuple[Float[Tensor, "images words tokens"], Bool[Tensor, "images words"]]:
    """Return cosines of words and tokens, and the mask of real words.

    They are compared in the space of the language model: projected tokens before it, states inside
    it. Tower features and input embeddings do not share a space, even if they have the same width.
    """
    question, mask = context.question, context.question_mask
    tokens = context.features if context.projected is None else context.projected
    assert question is not None  # checked by `select`
    if mask is None:
        mask = torch.ones(question.shape[:-1], dtype=torch.bool, device=question.device)
    if question.shape[-1] != tokens.shape[-1]:
        raise InputError(
            f"{method}: got a question of width {question.shape[-1]} and features of width "
            f"{tokens.shape[-1]}; expected projected tokens, or use inside the language model"
        )
    if values_are_free(mask, context.mask) and bool((context.mask.any(-1) & ~mask.any(-1)).any()):
        raise InputError(f"{method}: got an image whose question has no word; expected one or more")
    words = F.normalize(question.float().masked_fill(~mask.unsqueeze(-1), 0.0), dim=-1)
    return words @ unit_features(context, tokens).transpose(-1, -2), mask


def scaled(values: TokenValues, context: ReducerContext) -> TokenValues:
    """Scale the real values of each row to [0, 1]; all 1 if they are equal."""
    if values.shape[-1] == 0:
        return values
    low = torch.where(context.mask, values, torch.inf).amin(-1, keepdim=True)
    high = torch.where(context.mask, values, -torch.inf).amax(-1, keepdim=True)
    spread = high - low
    return torch.where(spread > 0, (values - low) / spread, 1.0).masked_fill(~context.mask, 0.0)


def joined(*parts: Int[Tensor, "images _"], width: int) -> Int[Tensor, "images kept"]:
    """Join picks, of which none repeats, into `width` columns without gaps; -1 pads the end."""
    picks = torch.cat(parts, -1)
    order = ops.align_left(picks >= 0, width)
    return torch.where(order < 0, -1, ops.gather(picks, order))


def fold_flops(num_tokens: int, width: int, budget: int) -> float:
    """Return the FLOPs of `Selection.fold`."""
    return 2.0 * budget * num_tokens * width


def row_flops(num_keys: int, width: int) -> float:
    """Return the FLOPs of one attention row over `num_keys` keys; `width` over all heads."""
    return 2.0 * num_keys * width
