"""TextBatch: the words of a batch of images as vectors, and their provenance."""

from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free

Provenance = Literal["none", "predicted", "oracle", "shuffled"]


class Text(NamedTuple):
    """The tensors of a `TextBatch`."""

    embeddings: Tensor  # (batch, words, text_dim)
    mask: Tensor  # (batch, words), True where there is a word


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Words of every image, padded to one length.

    >>> text = TextBatch(torch.randn(2, 3, 8), torch.tensor([[True, True, False], [False] * 3]))
    >>> text.without(torch.tensor([True, False])).mask.any()
    tensor(False)
    """

    embeddings: Float[Tensor, "batch words text_dim"]
    """One vector for each word (tag, class name or sentence); padding may hold anything."""
    mask: Bool[Tensor, "batch words"]
    """Which words are real; an image may have none."""
    words: tuple[tuple[str, ...], ...] | None = None
    """The words of each image as strings, without padding; for pictures and reports."""
    provenance: Provenance = "predicted"
    """Source of the words: no words, a model or user, the ground truth, another image."""

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 3 or self.mask.shape != self.embeddings.shape[:2]:
            raise InputError(
                f"TextBatch: got embeddings {tuple(self.embeddings.shape)} and mask "
                f"{tuple(self.mask.shape)}, expected (batch, words, text_dim) and (batch, words)"
            )
        if values_are_free(self.embeddings, self.mask):
            bad = ~self.embeddings.detach().isfinite().all(-1) & self.mask
            if bad.any():
                sample, slot = bad.nonzero()[0].tolist()
                raise InputError(
                    f"TextBatch: got NaN or infinity in word {slot} of sample {sample}, expected "
                    "finite vectors; check the text encoder or the table that they came from"
                )
        if self.words is not None and len(self.words) != len(self.mask):
            raise InputError(
                f"TextBatch: got words of {len(self.words)} images for a batch of "
                f"{len(self.mask)}, expected one tuple of words for each"
            )

    def to(self, device: torch.device | str) -> "TextBatch":
        """Return the words on another device."""
        return replace(self, embeddings=self.embeddings.to(device), mask=self.mask.to(device))

    def without(self, dropped: Bool[Tensor, " batch"]) -> "TextBatch":
        """Return the batch without the words of some images, for text dropout."""
        return self.only(~dropped.unsqueeze(-1).expand_as(self.mask))

    def swapped(self, chosen: Bool[Tensor, " batch"]) -> "TextBatch":
        """Return the batch with the words of the previous image in some places."""
        place = torch.arange(len(chosen), device=chosen.device)
        rows = (place - chosen.long()) % len(place)
        words = self.words and tuple(self.words[row] for row in rows.tolist())
        return replace(self, embeddings=self.embeddings[rows], mask=self.mask[rows], words=words)

    def only(self, kept: Bool[Tensor, "batch words"]) -> "TextBatch":
        """Return the batch with some of its words."""
        words = self.words
        if words is not None:
            words = tuple(
                tuple(compress(strings, keep[real].tolist()))
                for strings, keep, real in zip(words, kept, self.mask, strict=True)
            )
        return replace(self, mask=self.mask & kept, words=words)


def legacy_text_mask(
    embeddings: Float[Tensor, "batch words text_dim"],
) -> Bool[Tensor, "batch words"]:
    """Return the mask of the original code: a zero vector is padding."""
    return (embeddings != 0).any(-1)
