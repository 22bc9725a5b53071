"""Text examples: a JSON-lines file, and vectors that need no model.

`embed_texts` is feature hashing (Weinberger et al. 2009) of words and pairs of neighbours, signed
so that collisions cancel out on average, with square-root counts. It needs no encoder, and only
measures overlap of words.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, TextOrNumber, read_json_lines
from eligo.shots.pool.pool import Pool

_WORD = re.compile(r"\w+|[^\w\s]")
_NOTHING = "<nothing>"  # the word of an empty text: every text needs a direction


class TextItem(NamedTuple):
    """A line of a text file."""

    id: str
    input: str
    output: str
    group: str | None


class _TextRow(JsonRow):
    id: TextOrNumber
    input: TextOrNumber
    output: TextOrNumber
    group: TextOrNumber | None = None


def read_texts(path: str | Path) -> list[TextItem]:
    """Read `{"id", "input", "output"[, "group"]}` from each line; ids are unique."""
    return [
        TextItem(row.id, row.input, row.output, row.group)
        for _, row in read_json_lines(path, _TextRow, unique="id")
    ]


def text_pool(
    items: Sequence[TextItem],
    embed: Callable[[list[str]], Float[Tensor, "texts dim"] | np.ndarray] | None = None,
    *,
    queries: bool = False,
) -> Pool:
    """Return a pool of `input output` texts, by default embedded with `embed_texts`.

    `embed` is any function from texts to vectors, such as `open_encoder(...).texts`. With
    `queries`, the pool holds questions to choose examples for, embedded by their input alone.
    """
    texts = [item.input if queries else f"{item.input} {item.output}" for item in items]
    return Pool(
        [item.id for item in items],
        {"text": (embed or embed_texts)(texts)},
        groups=[item.group for item in items],
        payload=[{"question": item.input, "answer": item.output} for item in items],
    )


def words_of(text: str) -> list[str]:
    """Return lower-case words and punctuation marks.

    >>> words_of("It's 2 p.m.!")
    ['it', "'", 's', '2', 'p', '.', 'm', '.', '!']
    """
    return _WORD.findall(text.lower())


def embed_texts(texts: Iterable[str], dim: int = 768) -> Float[Tensor, "texts dim"]:
    """Return a unit vector for the words of each text, the same on every machine.

    >>> a, b, c = embed_texts(["the red ball", "a red ball", "who came?"])
    >>> bool(a @ b > a @ c)
    True
    """
    rows = []
    for text in texts:
        words = words_of(text) or [_NOTHING]
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        row = torch.zeros(dim)
        for feature, count in Counter([*words, *pairs]).items():
            number = int.from_bytes(
                hashlib.blake2b(feature.encode(), digest_size=8).digest(), "big"
            )
            row[(number >> 1) % dim] += (1 if number & 1 else -1) * count**0.5
        if not row.any():  # all cancelled out
            row[0] = 1.0
        rows.append(row)
    return F.normalize(torch.stack(rows), dim=-1) if rows else torch.zeros(0, dim)


def embed_tokens(
    texts: Sequence[str],
    table: Float[Tensor, "tokens dim"],
    tokenize: Callable[[str], Sequence[int]],
) -> Float[Tensor, "texts dim"]:
    """Return the unit mean of each text's token vectors; `tokenize` gives rows of the table."""
    rows = []
    for text in texts:
        ids = list(tokenize(text))
        if not ids:
            raise InputError(f"embed_tokens: {text!r:.60} has no token; leave it out")
        rows.append(table[ids].float().mean(0))
    return F.normalize(torch.stack(rows), dim=-1) if rows else torch.zeros(0, table.shape[1])
