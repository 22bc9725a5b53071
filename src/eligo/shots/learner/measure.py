"""What a row's choice came to, query by query. Sections 6 and 7, Metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.shots import metrics
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.learner.stages import Asked
from eligo.shots.teacher.teacher import Lesson

COLUMNS = ("accuracy", "utility", "regret", "ndcg", "mrr")
Columns = dict[str, list[float | None]]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a row chose for every query."""

    picks: Mapping[int, Int64[Tensor, "queries shots"]]
    """Positions among the candidates, by number of shots."""
    scores: Float[Tensor, "queries candidates"] | None
    """What it ranked them by at the first step."""

    @classmethod
    def nested(
        cls, picks: Int64[Tensor, "queries shots"], scores: Tensor | None, shots: Sequence[int]
    ) -> "Chosen":
        """Of one list, whose beginnings are the shorter ones."""
        return cls({count: picks[:, :count] for count in shots}, scores)


class ExamSet:
    """The test queries with what the teacher found for them."""

    def __init__(
        self, scorer: LearnerScorer, asked: Asked, lessons: Sequence[Lesson],
        shots: Sequence[int], beam: int,
    ) -> None:  # fmt: skip
        self.scorer, self.asked, self.lessons = scorer, asked, lessons
        self.start = torch.tensor([lesson.baseline for lesson in lessons])
        self.first = torch.stack([lesson.logprob[0] for lesson in lessons])
        """Scores of the first step: (queries, candidates)."""
        self.labels: dict[int, Tensor] = {
            count: torch.tensor(
                [lesson.shortened(count, beam, "logprob")[0].picks for lesson in lessons]
            )
            for count in shots
        }
        """The best list of each query, by number of shots."""
        self.best = {count: self._answers(picks).logprob for count, picks in self.labels.items()}

    def measure(self, chosen: Chosen) -> dict[str, Columns]:
        """Columns by number of shots, a value for each query; None where there is none.

        Utility is the log-probability of the answer over that without examples, and regret what
        the best list has more of it.
        """
        found = {}
        for count, picks in chosen.picks.items():
            told = self._answers(picks)
            columns: dict[str, Tensor] = {
                "accuracy": told.right.float(),
                "utility": told.logprob - self.start,
                "regret": self.best[count] - told.logprob,
            }
            if chosen.scores is not None:
                columns["ndcg"] = metrics.ndcg(chosen.scores, self.first, count)
                columns["mrr"] = metrics.reciprocal_rank(chosen.scores, self.labels[count])
            found[str(count)] = {name: _plain(values) for name, values in columns.items()}
        return found

    def _answers(self, picks: Tensor) -> Answers:
        return self.scorer.answers(self.asked.queries, self.asked.candidates.gather(1, picks))


def _plain(values: Tensor) -> list[float | None]:
    return [None if value != value else round(value, 5) for value in values.tolist()]


def bits(values: Sequence[float | None]) -> str:
    """Right answers, four in a hexadecimal digit, the first query first."""
    return f"{int('1' + ''.join(str(int(value or 0)) for value in values), 2):x}"
