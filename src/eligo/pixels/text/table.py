"""The strings of a data set, encoded once: an image's words are then rows of one table."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import TextConfig
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.pixels.text.encoders import TextEncoder

Said = tuple[str, bool]
"""A string, and whether it is a sentence."""


def words_of(
    config: TextConfig,
    classes: Sequence[str],
    tags: Sequence[str] = (),
    captions: Sequence[str] = (),
) -> list[Said]:
    """What an image with these tags and captions is told, in order, cut to its places."""
    named: list[Said] = [(tag, False) for tag in tags[: config.max_tags]]
    told: list[Said] = [(caption, True) for caption in captions[: config.max_captions]]
    match config.source:
        case "none":
            return []
        case "tags":
            return named
        case "labels":
            return [(name, False) for name in classes]
        case "captions":
            return told
        case "both":
            return named + told


class PhraseTable:
    """Every string once, with its vector.

    Images refer to them by number, so that a batch of words is made on the device by indexing.
    """

    def __init__(self, encoder: TextEncoder, strings: Iterable[Said], num_places: int) -> None:
        self.num_places = num_places
        self.strings = list(dict.fromkeys(strings))
        self.number = {said: index for index, said in enumerate(self.strings)}
        vectors = torch.zeros(len(self.strings) + 1, encoder.dim)  # the last one for nothing
        for kind in (False, True):
            rows = [index for index, said in enumerate(self.strings) if said[1] is kind]
            if rows:
                texts = [self.strings[row][0] for row in rows]
                vectors[rows] = encoder.encode(texts, sentences=kind).cpu()
        if not bool(vectors.isfinite().all()):
            bad = int((~vectors.isfinite().all(-1)).nonzero()[0])
            raise InputError(f"{self.strings[bad][0]!r}: its vector holds NaN or infinity")
        self.vectors: Float[Tensor, "strings dim"] = vectors

    def to(self, device: torch.device) -> "PhraseTable":
        """Move the vectors."""
        self.vectors = self.vectors.to(device)
        return self

    def numbers(self, words: Sequence[Said]) -> Int64[Tensor, " places"]:
        """Where an image's words stand in the table; -1 pads."""
        found = [self.number[said] for said in words[: self.num_places]]
        return torch.tensor(found + [-1] * (self.num_places - len(found)), dtype=torch.int64)

    def batch(self, numbers: Int64[Tensor, "batch places"], provenance: Provenance) -> TextBatch:
        """The words of a batch."""
        return TextBatch(self.vectors[numbers], numbers >= 0, None, provenance)
