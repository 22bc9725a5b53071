"""Words as users give them: one string with commas or a list, the same for all frames or not."""

from collections.abc import Sequence
from typing import TypeAlias, cast

import torch
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.pixels.text.batch import TextBatch

Words: TypeAlias = str | Sequence[str] | None
"""Words of an image."""
FrameWords: TypeAlias = Words | Sequence[Words]
"""Words of all frames of a batch, or of each."""


def listed(words: Words, separator: str | None = None) -> list[str]:
    """Return words as a list, each once, without empty ones."""
    if isinstance(words, str):
        words = words.split(separator) if separator else [words]
    return list(dict.fromkeys(word.strip() for word in words or () if word.strip()))


def listed_by_frame(words: FrameWords, batch: int, separator: str | None = None) -> list[list[str]]:
    """Return the words of every frame."""
    if words is None or isinstance(words, str) or all(isinstance(word, str) for word in words):
        return [listed(cast("Words", words), separator)] * batch
    if len(words) != batch:
        raise InputError(
            f"words: got {len(words)} lists for {batch} frames, expected one list for each, or one "
            "for all"
        )
    return [listed(cast("Words", each), separator) for each in words]


def joined(texts: Sequence[TextBatch | None]) -> TextBatch | None:
    """Return the words of single images as a batch, padded to the most; None: no words at all."""
    given = [text for text in texts if text is not None]
    if not given or len(texts) == 1:
        return given[0] if given else None
    most = max(text.mask.shape[1] for text in given)
    rows = []
    for text in texts:
        row = given[0].only(torch.zeros_like(given[0].mask)) if text is None else text
        extra = most - row.mask.shape[1]
        rows.append((F.pad(row.embeddings, (0, 0, 0, extra)), F.pad(row.mask, (0, extra))))
    vectors, masks = (torch.cat(parts) for parts in zip(*rows, strict=True))
    words = tuple(() if text is None or text.words is None else text.words[0] for text in texts)
    return TextBatch(vectors, masks, words, given[0].provenance)
