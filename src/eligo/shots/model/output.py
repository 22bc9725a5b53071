"""What a pointer selector returns: from a call, and from `predict`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from jaxtyping import Float, Int
from torch import Tensor

from eligo.selection import Selection


class PointerOutput(TypedDict):
    """Of a call."""

    loss: Float[Tensor, ""] | None
    """What to minimise; None without labels."""
    logits: Float[Tensor, "rows steps candidates"]
    """Float32; -inf where padded or picked before."""
    predictions: Int[Tensor, "rows steps"]
    """Best candidate of each step, given the labels before it (or its own picks); -1: none left."""
    ce_loss: Float[Tensor, ""] | None
    """Smoothed cross-entropy."""
    ranking_loss: Float[Tensor, ""] | None
    """Before its weight; None without scores."""
    num_ignored_steps: Int[Tensor, ""]
    """Steps without a label, or with one that was picked before."""


@dataclass(frozen=True, eq=False)
class PointerPrediction:
    """Of `predict`: iterating yields predictions and scores, as the guides unpack it.

    With top_k > 1 a last axis holds the alternatives of each step along the greedy path, and
    `[..., 0]` is that path.
    """

    predictions: Int[Tensor, "batch steps *alternatives"]
    """Candidates; -1 where none is left."""
    scores: Float[Tensor, "batch steps *alternatives"]
    """Their logits at that step; -inf where none is left."""
    log_probs: Float[Tensor, "batch steps *alternatives"]
    """Log-softmax over what could be picked at that step; -inf where none is left."""
    selection: Selection
    """The greedy path, with the first step's logits as scores."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.predictions, self.scores))
