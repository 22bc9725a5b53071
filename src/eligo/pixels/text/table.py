"""The words of a data set, encoded once: the words of an image are rows of one table."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import TextConfig
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.pixels.text.encoders import TextEncoder

Phrase = tuple[str, bool]
"""A string, and whether it is a sentence."""


def words_of(
    config: TextConfig,
    classes: Sequence[str],
    tags: Sequence[str] = (),
    captions: Sequence[str] = (),
) -> list[Phrase]:
    """Return the words of an image with these tags and captions, in order."""
    names: list[Phrase] = [(tag, False) for tag in tags[: config.max_tags]]
    sentences: list[Phrase] = [(caption, True) for caption in captions[: config.max_captions]]
    labels: list[Phrase] = [(name, False) for name in classes]
    return {
        "none": [], "tags": names, "labels": labels, "captions": sentences,
        "both": names + sentences,
    }[config.source]  # fmt: skip


class PhraseTable:
    """The vectors of all phrases, each once; a batch is indexed from it on the device."""

    def __init__(self, encoder: TextEncoder, phrases: Iterable[Phrase], max_words: int) -> None:
        self.max_words = max_words
        self.phrases = list(dict.fromkeys(phrases))
        self.row = {phrase: row for row, phrase in enumerate(self.phrases)}
        vectors = torch.zeros(len(self.phrases) + 1, encoder.dim)  # the last row is padding
        for sentences in (False, True):
            rows = [row for phrase, row in self.row.items() if phrase[1] is sentences]
            if rows:
                texts = [self.phrases[row][0] for row in rows]
                vectors[rows] = encoder.encode(texts, sentences=sentences).cpu()
        if not bool(vectors.isfinite().all()):
            bad = int((~vectors.isfinite().all(-1)).nonzero()[0])
            raise InputError(f"{self.phrases[bad][0]!r}: its vector holds NaN or infinity")
        self.vectors: Float[Tensor, "phrases dim"] = vectors

    def to(self, device: torch.device) -> "PhraseTable":
        """Move the vectors."""
        self.vectors = self.vectors.to(device)
        return self

    def ids(self, words: Sequence[Phrase]) -> Int64[Tensor, " max_words"]:
        """Return the rows of an image's words; -1 pads."""
        ids = [self.row[phrase] for phrase in words[: self.max_words]]
        return torch.tensor(ids + [-1] * (self.max_words - len(ids)), dtype=torch.int64)

    def batch(self, ids: Int64[Tensor, "batch max_words"], provenance: Provenance) -> TextBatch:
        """Return the words of a batch."""
        return TextBatch(self.vectors[ids], ids >= 0, None, provenance)
