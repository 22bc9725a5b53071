"""BM25 on words (Robertson and Zaragoza 2009), as Lucene computes it.

`sum_w idf(w) tf / (tf + k1 (1 - b + b len / mean_len))`, `idf = ln(1 + (N - n_w + 0.5) /
(n_w + 0.5))`. A pool of examples is small enough not to need a library.
"""

import math
from collections import Counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.data.text import words_of
from eligo.shots.selector import PoolSelector, ScoredPicks


class BM25(PoolSelector):
    """The examples that share rare words with the query; reads `payload` and `Query.text`."""

    kind: ClassVar[str] = "bm25"

    def __init__(self, k1: float = 1.5, b: float = 0.75) -> None:
        self.k1, self.b = k1, b
        self._words: tuple[Any, dict[str, tuple[Tensor, Tensor]]] = (None, {})

    def _postings(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the rows and score contributions of each word; computed once for a pool."""
        indexed_pool, postings = self._words
        if indexed_pool is self.pool:
            return postings
        counts = [Counter(words_of(text)) for text in self.pool.texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        shares_by_word: dict[str, tuple[list[int], list[float]]] = {}
        for row, count in enumerate(counts):
            norm = self.k1 * (1 - self.b + self.b * lengths[row] / mean)
            for word, frequency in count.items():
                rows, shares = shares_by_word.setdefault(word, ([], []))
                rows.append(row)
                shares.append(frequency / (frequency + norm))
        postings = {}
        for word, (rows, shares) in shares_by_word.items():
            idf = math.log(1 + (len(counts) - len(rows) + 0.5) / (len(rows) + 0.5))
            postings[word] = (torch.tensor(rows), idf * torch.tensor(shares))
        self._words = (self.pool, postings)
        return postings

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        if query.text is None:
            raise InputError(f"BM25: query {query.id!r} has no text; give Query(..., text=...)")
        postings, scores = self._postings(), torch.zeros(len(self.pool))
        for word in words_of(query.text):
            if word in postings:
                word_rows, contributions = postings[word]
                scores[word_rows] += contributions
        return ScoredPicks(ops.top_k(scores[rows], shots), scores[rows])

    def _settings(self) -> dict[str, Any]:
        return {"k1": self.k1, "b": self.b}
