"""A scorer without a model: the best bigram F1 between an example's answer and the correct one."""

from collections import Counter
from collections.abc import Sequence

import torch

from eligo.shots.data.query import Query
from eligo.shots.data.text import words_of
from eligo.shots.hosts.prompt import UnscorableError, turn_of
from eligo.shots.hosts.scorer import Scores
from eligo.shots.pool.pool import Pool

_MIN = 1e-3  # lower bound of the F1, for its logarithm


class OverlapScorer:
    """Text only and fast: for trying a pipeline, or for answers that are whole sentences."""

    def __init__(self, pool: Pool, queries: Pool) -> None:
        self.pool, self.queries = pool, queries

    def baseline(self, query: Query) -> Scores:
        """Score the answer without any example: the lower bound."""
        return self.score_lists(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """Score the examples `(*prefix, c)` for each candidate c."""
        return self.score_lists(query, [(*prefix, name) for name in candidates])

    def score_lists(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        """Score whole lists of examples."""
        gold = turn_of(self.queries, query.id).answer
        if not gold.strip():
            raise UnscorableError(f"query {query.id!r} has no answer")
        best = [
            max((bigram_f1(turn_of(self.pool, name).answer, gold) for name in names), default=0.0)
            for names in lists
        ]
        return Scores(torch.tensor(best).clamp_min(_MIN).log(), 1)


def bigram_f1(answer: str, gold: str) -> float:
    """F1 of word bigrams; of single words if a text has only one.

    >>> bigram_f1("a red ball", "the red ball")
    0.5
    """
    first, second = words_of(answer), words_of(gold)
    size = 2 if min(len(first), len(second)) > 1 else 1
    left, right = (
        Counter(tuple(text[n : n + size]) for n in range(len(text) - size + 1))
        for text in (first, second)
    )
    shared = (left & right).total()
    return 2 * shared / max(1, left.total() + right.total())
