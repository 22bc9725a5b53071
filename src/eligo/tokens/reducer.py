"""What a method that reduces vision tokens sees, and what it gives back.

Every method, ours or a baseline, trained or not, is a `Reducer`: scores in, `Selection` out. Where it
stands (before the language model or inside it), how positions, masks and caches follow, and what it
costs are none of its business; `pruning` and `cost` see to that.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.selection import Selection

Where = Literal["before", "inside"]
"""Before the language model (on tower features), or inside it (on the input of a layer)."""
Need = Literal["question", "attention_row", "question_rows", "cls_row", "scene"]


@dataclass(frozen=True)
class ReducerContext:
    """One row per image; rows of different length are padded and masked."""

    features: Float[Tensor, "images tokens width"]
    """Tower features (before) or hidden states at the layer's input (inside)."""
    mask: Bool[Tensor, "images tokens"]
    """Which tokens are real."""
    positions: Int[Tensor, "images tokens"]
    """Raster index of each token in its image's grid; survivors keep theirs."""
    grid: Int[Tensor, "images 2"]
    """Rows and columns of each image's grid."""
    sizes: Float[Tensor, "images tokens"] | None = None
    """How many tokens were folded into each one so far; None: one each."""
    question: Float[Tensor, "images words question_width"] | None = None
    """Prompt text: input embeddings (before) or states at the layer's input (inside)."""
    question_mask: Bool[Tensor, "images words"] | None = None
    """Which words are real; None: all of them."""
    attention_row: Float[Tensor, "images tokens"] | None = None
    """What the last prompt token attends to, in the layer before, mean over heads."""
    question_rows: Float[Tensor, "images words tokens"] | None = None
    """The same for every word of the question; what `question_mask` hides may hold anything."""
    cls_row: Float[Tensor, "images tokens"] | None = None
    """What [CLS] attends to in the tower layer that gives the features (mean over heads); for a
    tower without [CLS], the mean attention that each token receives."""
    scene: Bool[Tensor, "images tokens"] | None = None
    """Tokens that show an object which decides the answer (embedded world only)."""
    padded: bool = True
    """False where it is known without asking the device that `mask` is True throughout."""
    question_padded: bool = True
    """The same for `question_mask`."""


@runtime_checkable
class Reducer(Protocol):
    """Keeps `budget` tokens of every image, folding or dropping the rest."""

    @property
    def name(self) -> str:
        """Short, stable: what tables and plans call it."""
        ...

    @property
    def where(self) -> Set[Where]:
        """Where it can stand."""
        ...

    @property
    def needs(self) -> Set[Need]:
        """Which optional parts of the context it reads."""
        ...

    def select(self, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
        """Keep exactly `budget[i]` of the tokens of image i (all, if it has fewer).

        A row of the result never depends on other rows or on padding.
        """
        ...
