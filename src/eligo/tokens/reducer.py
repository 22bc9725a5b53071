"""The interface of methods that reduce vision tokens: `ReducerContext` in, `Selection` out.

All methods, learned or training-free, implement `Reducer`; `Relaxer` is the form with gradients for
training. Positions, masks and caches are handled by `pruning`, costs by `eligo.tokens.cost`.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.selection import Selection

Where = Literal["before", "inside"]
"""Before the language model (on tower features), or inside it (on the input of a layer)."""
Need = Literal["question", "attention_row", "question_rows", "cls_row", "object_row", "scene"]
"""Optional fields of `ReducerContext`."""
TOWER_ROWS: tuple[Need, ...] = ("cls_row", "object_row")
"""Those that are recorded in the tower."""
Budget = Int[Tensor, " images"]
"""Tokens to keep per image, on the CPU."""
Features = Float[Tensor, "images tokens width"]
TokenValues = Float[Tensor, "images tokens"]
TokenIndex = Int[Tensor, "images tokens"]
TokenMask = Bool[Tensor, "images tokens"]


@dataclass(frozen=True)
class ReducerContext:
    """Vision tokens of some images, one row per image, padded and masked."""

    features: Features
    """Tower features (before) or hidden states at the layer's input (inside)."""
    mask: TokenMask
    """True for real tokens."""
    positions: TokenIndex
    """Raster index of each token in the full grid of its image."""
    grid: Int[Tensor, "images 2"]
    """Rows and columns of each image's grid; a video has its frames below each other."""
    frames: Int[Tensor, " images"] | None = None
    """Frames of each video, which divide the rows of its grid equally; None: images."""
    sizes: TokenValues | None = None
    """Number of tokens merged into each; None: one each."""
    question: Float[Tensor, "images words question_width"] | None = None
    """Prompt text: input embeddings (before) or states at the layer's input (inside)."""
    projected: Float[Tensor, "images tokens question_width"] | None = None
    """Tokens before the language model in the space of the question; None inside it, where
    features already are. Given if the question is read."""
    question_mask: Bool[Tensor, "images words"] | None = None
    """True for real words; None: all are."""
    attention_row: TokenValues | None = None
    """Attention of the last prompt token in the layer before, averaged over heads."""
    question_rows: Float[Tensor, "images words tokens"] | None = None
    """The same for every word of the question; undefined where `question_mask` is False."""
    cls_row: TokenValues | None = None
    """Attention of [CLS] in the tower layer that gives the features, averaged over heads; for
    towers without [CLS], the mean attention that each token receives."""
    object_row: TokenValues | None = None
    """The same in a middle layer of the tower."""
    scene: TokenMask | None = None
    """Tokens that show an object which decides the answer (generated scenes only)."""
    padded: bool = True
    """False if `mask` is certainly all True, known without a device sync."""
    question_padded: bool = True
    """The same for `question_mask`."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields that are tensors."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@runtime_checkable
class Reducer(Protocol):
    """A method that keeps `budget` tokens of every image and merges or drops the rest."""

    @property
    def name(self) -> str:
        """Short name used in tables and plans."""
        ...

    @property
    def where(self) -> Set[Where]:
        """Where it can be used."""
        ...

    @property
    def needs(self) -> Set[Need]:
        """Optional fields of the context that it reads."""
        ...

    def select(self, context: ReducerContext, budget: Budget) -> Selection:
        """Keep exactly `budget[i]` tokens of image i (all, if it has fewer).

        A row of the result depends neither on other rows nor on padding. The assignment of a
        reducer that merges already weighs by `context.sizes`.
        """
        ...


@dataclass(frozen=True)
class SoftMerge:
    """Result of stage 1 in a training step, with gradients."""

    features: Float[Tensor, "images kept width"]  # tower features, in raster order
    selection: Selection  # in raster order
    key_bias: Float[Tensor, "images kept"]
    """Attention bias in every layer: `log z` (optional) + `log(1 + p - stopgrad(p))`."""


@dataclass(frozen=True)
class SoftCut:
    """Result of a cut in a training step, with gradients."""

    selection: Selection  # the hard choice among `context.mask`
    mask: TokenValues  # m: straight-through (values 0 and 1) or soft (values p)


@runtime_checkable
class Relaxer(Protocol):
    """Makes the choices of all stages in a training step."""

    def merge(self, context: ReducerContext, budget: Budget) -> SoftMerge:
        """Run stage 1."""
        ...

    def cut(self, layer: int, context: ReducerContext, budget: Budget) -> SoftCut:
        """Run the cut at the input of a layer; `context.mask` marks the remaining tokens."""
        ...
