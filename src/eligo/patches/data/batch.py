"""Interfaces of captioned images: training batches, and sets for evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from eligo.scenes.painter import Rendered
from eligo.train.task import Source

States = Float[Tensor, "_ _ _"]
"""(items, tokens, width): stored states of frozen encoders, for their heads."""
Pieces = tuple[Int[Tensor, "texts words"] | States, Bool[Tensor, "texts words"]]
"""Word pieces (or their states), and their mask."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One process's share of the images and texts of a step."""

    images: UInt8[Tensor, "images 3 side side"] | States
    texts: Pieces
    dense: (
        tuple[Int[Tensor, "images dense_words"] | States, Bool[Tensor, "images dense_words"]] | None
    )
    """One dense caption for every image."""
    positive: Bool[Tensor, "all_images all_texts"] | None
    """True pairs of the whole step (all processes)."""
    image_ids: Int[Tensor, " images"] | None
    """If `positive` is None: text i belongs to image i; equal ids are the same image."""
    rendered: Rendered | None = None
    """The scenes, to train the vision encoder on patch labels."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with every tensor changed; not the scenes, which files have none of."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(change(part) for part in value)
            return None if value is None else change(value)

        parts = (self.images, self.texts, self.dense, self.positive, self.image_ids)
        return Batch(*map(changed, parts), rendered=self.rendered)

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory; data loaders call this."""
        return self.map(Tensor.pin_memory)


class CaptionSource(Source):
    """A source of images and captions."""

    @abstractmethod
    def validation(self) -> "RetrievalSet":
        """Return the validation set, which chooses checkpoints."""


class RetrievalSet(ABC):
    """Images and texts for retrieval in both directions."""

    @property
    @abstractmethod
    def positive(self) -> Bool[Tensor, "images texts"]:
        """True pairs."""

    @property
    @abstractmethod
    def owners(self) -> Int[Tensor, " texts"]:
        """The image that each text was written for."""

    @abstractmethod
    def images(self, size: int) -> Iterator[UInt8[Tensor, "images 3 side side"] | States]:
        """Yield all images, `size` at a time."""

    @abstractmethod
    def texts(self, size: int) -> Iterator[Pieces]:
        """Yield all texts, `size` at a time."""

    @abstractmethod
    def dense(self, size: int) -> Iterator[Pieces]:
        """Yield the dense captions of all images, `size` at a time."""


def pad_pieces(rows: list[list[int]], pad: int) -> Pieces:
    """Return rows of word pieces as one padded tensor, and its mask.

    >>> pad_pieces([[7], [8, 9]], pad=0)[0]
    tensor([[7, 0],
            [8, 9]])
    """
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(width) < lengths.unsqueeze(1)
