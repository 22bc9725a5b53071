"""What a row's choice came to, query by query. Sections 6 and 7, Metrics."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eligo.demos.exam.rows import Chosen, best_lists
from eligo.demos.exam.scoring import LearnerScorer
from eligo.demos.exam.stages import Asked
from eligo.demos.learned import metrics
from eligo.demos.teach.teacher import Lesson

COLUMNS = ("accuracy", "utility", "regret", "ndcg", "mrr")


def measure(
    chosen: Chosen,
    scorer: LearnerScorer,
    asked: Asked,
    lessons: Sequence[Lesson],
    beam: int,
) -> dict[str, dict[str, list[float | None]]]:
    """Columns by number of shots, a value for each query; None where there is none.

    Utility is the log-probability of the answer over that without examples, and regret what the
    best list has more of it.
    """
    start = torch.tensor([lesson.baseline for lesson in lessons])
    first = torch.stack([lesson.logprob[0] for lesson in lessons])
    found = {}
    for count, picks in chosen.picks.items():
        labels = best_lists(lessons, count, beam)
        told, best = (_answers(scorer, asked, these) for these in (picks, labels))
        columns: dict[str, Tensor] = {
            "accuracy": told.right.float(),
            "utility": told.logprob - start,
            "regret": best.logprob - told.logprob,
        }
        if chosen.scores is not None:
            columns["ndcg"] = metrics.ndcg(chosen.scores, first, count)
            columns["mrr"] = metrics.reciprocal_rank(chosen.scores, labels)
        found[str(count)] = {name: _plain(values) for name, values in columns.items()}
    return found


def _answers(scorer: LearnerScorer, asked: Asked, picks: Tensor) -> Any:
    return scorer.answers(asked.queries, asked.candidates.gather(1, picks))


def _plain(values: Tensor) -> list[float | None]:
    return [None if value != value else round(value, 5) for value in values.tolist()]


def bits(values: Sequence[float | None]) -> str:
    """Right answers, four in a hexadecimal digit, the first query first."""
    return f"{int('1' + ''.join(str(int(value or 0)) for value in values), 2):x}"
