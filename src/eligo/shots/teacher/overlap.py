"""A scorer without a model: do the examples' answers look like the right one? Section 6, text hook.

The best bigram F1 between any example's answer and the right one stands for the probability.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from eligo.shots.data.query import Query
from eligo.shots.data.text import words_of
from eligo.shots.hosts.scorer import Scores, turn_of
from eligo.shots.pool.pool import Pool

_LEAST = 1e-3  # a probability that its logarithm can be taken of


class OverlapScorer:
    """Text only, in no time: to try a pipeline, or where answers are whole sentences."""

    def __init__(self, pool: Pool, queries: Pool) -> None:
        self.pool, self.queries = pool, queries

    def baseline(self, query: Query) -> Scores:
        """Nothing is like nothing."""
        return self._scored(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """The best answer in each `(*prefix, c)`."""
        return self._scored(query, [(*prefix, name) for name in candidates])

    def _scored(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        gold = turn_of(self.queries, query.id).answer
        best = [
            max((bigram_f1(turn_of(self.pool, name).answer, gold) for name in names), default=0.0)
            for names in lists
        ]
        return Scores(torch.tensor(best).clamp_min(_LEAST).log(), 1)


def bigram_f1(said: str, gold: str) -> float:
    """Harmonic mean of precision and recall of pairs of words; single words where one has no pair.

    >>> bigram_f1("a red ball", "the red ball")
    0.5
    """
    first, second = words_of(said), words_of(gold)
    size = 2 if min(len(first), len(second)) > 1 else 1
    left, right = (
        Counter(tuple(text[n : n + size]) for n in range(len(text) - size + 1))
        for text in (first, second)
    )
    shared = (left & right).total()
    return 2 * shared / max(1, left.total() + right.total())
