"""What all training-free methods share: a frozen config that is also the `Reducer`.

A method has no state, so its config is all there is to it: `ToMe(rounds=4)` is what a YAML says,
what a table prints and what selects. `select` checks the context, brings the budgets to it and
hands over to `keep`; the helpers below turn scores, masks and destinations into a `Selection`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Set
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.config import Config
from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.reducer import Need, ReducerContext, Where

Space = Mapping[str, list[Any]]
"""Options, each with the values to try."""


class Method(Config):
    """A training-free reducer: no state, no gradient, nothing random but by its seed."""

    places: ClassVar[frozenset[Where]]
    """Where it can stand. What folds stands before the language model: inside, states are only
    ever gathered."""
    reads: ClassVar[frozenset[Need]] = frozenset()
    """Which optional parts of the context it reads."""
    space: ClassVar[Space] = {}
    """What is worth tuning; `proposals` draws from the product of the values."""

    name: Any
    """Which method; each one narrows this to its own literal, by which YAML tells them apart."""

    @property
    def where(self) -> Set[Where]:
        """Where it can stand."""
        return self.places

    @property
    def needs(self) -> Set[Need]:
        """Which optional parts of the context it reads."""
        return self.reads

    def describe(self) -> dict[str, Any]:
        """Name and options as plain values; `build(**description)` makes the method again."""
        return self.model_dump(mode="json")

    @torch.no_grad()
    def select(self, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
        """Keep exactly `budget[i]` of the tokens of image i (all, if it has fewer).

        Only the largest budget has to be known to the host: budgets that live on the CPU cost no
        device sync, wherever the features live.
        """
        self._check(context, budget)
        width = min(int(budget.max()), context.mask.shape[-1]) if len(budget) else 0
        budget = budget.to(context.mask.device, torch.int64, non_blocking=True)
        return self.keep(context, torch.minimum(budget, context.mask.sum(-1)), width)

    @abstractmethod
    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """As `select`; no budget exceeds its row's real tokens, and none exceeds `width`."""

    def _check(self, context: ReducerContext, budget: Tensor) -> None:
        for need in sorted(self.needs):
            if getattr(context, need) is None:
                raise InputError(
                    f"{self.name}: the context has no {need}; expected one, because this method "
                    f"ranks by it: it can stand {' or '.join(sorted(self.where))}"
                )
        if values_are_free(budget) and bool((budget < 0).any()):
            raise InputError(f"{self.name}: got budgets {budget.tolist()}; expected none below 0")


def keep_best(
    context: ReducerContext,
    scores: Float[Tensor, "images tokens"],
    budget: Int[Tensor, " images"],
    width: int,
) -> Selection:
    """The plain case: the best by score, best first."""
    scores = scores.float().masked_fill(~context.mask, 0.0)
    return Selection(ops.top_k(scores, budget, context.mask, width=width), scores, context.mask)


def keep_marked(
    context: ReducerContext, kept: Bool[Tensor, "images tokens"], width: int
) -> Selection:
    """Tokens that were marked rather than ranked, in raster order; the score is the mark."""
    return Selection(ops.align_left(kept, width), kept.float(), context.mask)


def fold_into(
    context: ReducerContext,
    indices: Int[Tensor, "images kept"],
    scores: Float[Tensor, "images tokens"],
    destination: Int[Tensor, "images tokens"],
) -> Selection:
    """Each token folded into column `destination` of `indices` (-1: dropped), by its size."""
    columns = torch.arange(indices.shape[-1], device=indices.device)
    folded = destination.unsqueeze(-2) == columns.unsqueeze(-1)  # (images, kept, tokens)
    weights = sizes_of(context).unsqueeze(-2).expand(folded.shape)
    return Selection(indices, scores, context.mask, torch.where(folded, weights, 0.0))


def sizes_of(context: ReducerContext) -> Float[Tensor, "images tokens"]:
    """How many tokens each one stands for already; 0 for padding."""
    if context.sizes is None:
        return context.mask.float()
    return context.sizes.float().masked_fill(~context.mask, 0.0)


def unit_features(context: ReducerContext) -> Float[Tensor, "images tokens width"]:
    """Features of length 1, in float32; zeros in padding, whatever stood there."""
    features = context.features.float().masked_fill(~context.mask.unsqueeze(-1), 0.0)
    return torch.nn.functional.normalize(features, dim=-1)


def similarities(context: ReducerContext) -> Float[Tensor, "images tokens tokens"]:
    """Cosines of all pairs of tokens, exactly symmetric; of a token with itself exactly 1."""
    units = unit_features(context)
    # A product's two triangles round differently, and not alike in every batch; then rounding, not
    # the lowest index, would decide between two that are each other's nearest.
    upper = (units @ units.transpose(-1, -2)).triu(1)
    own = torch.eye(units.shape[-2], dtype=torch.bool, device=units.device)
    return (upper + upper.transpose(-1, -2)).masked_fill(own, 1.0)


def question_similarities(
    method: str, context: ReducerContext
) -> tuple[Float[Tensor, "images words tokens"], Bool[Tensor, "images words"]]:
    """Cosines of words and tokens, and which words are real.

    Both must live in one space: states inside the language model do, tower features and input
    embeddings do not, even where they happen to be equally wide.
    """
    question, mask = context.question, context.question_mask
    assert question is not None  # `select` saw to it
    if mask is None:
        mask = torch.ones(question.shape[:-1], dtype=torch.bool, device=question.device)
    if question.shape[-1] != context.features.shape[-1]:
        raise InputError(
            f"{method}: got question states of width {question.shape[-1]} and features of width "
            f"{context.features.shape[-1]}; expected one space for both: it can only stand "
            "inside the language model"
        )
    if values_are_free(mask, context.mask) and bool((context.mask.any(-1) & ~mask.any(-1)).any()):
        raise InputError(f"{method}: got an image whose question has no word; expected one or more")
    words = question.float().masked_fill(~mask.unsqueeze(-1), 0.0)
    words = torch.nn.functional.normalize(words, dim=-1)
    return words @ unit_features(context).transpose(-1, -2), mask


def fold_flops(num_tokens: int, width: int, budget: int) -> float:
    """Of `Selection.fold`: kept x tokens x width."""
    return 2.0 * budget * num_tokens * width


def row_flops(num_keys: int, width: int) -> float:
    """Of one more row of attention over so many keys, in heads that are `width` wide together."""
    return 2.0 * num_keys * width
