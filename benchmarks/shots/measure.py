"""Health of the learner, and outcome of the lists that a method chose, per query."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo import ops
from eligo.shots import metrics
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.teacher.teacher import TeacherResult

COLUMNS = ("accuracy", "utility", "regret", "ndcg", "mrr")
Columns = dict[str, list[float | None]]
ORACLE, NEAR_CHANCE, HEADROOM = 0.90, 0.05, 0.10
"""Targets of the health check."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The lists that a method chose for every query."""

    picks: Mapping[int, Int64[Tensor, "queries shots"]]
    """Positions among the candidates, by number of shots."""
    scores: Float[Tensor, "queries candidates"] | None
    """Scores of the candidates at the first step."""

    @classmethod
    def nested(
        cls, picks: Int64[Tensor, "queries shots"], scores: Tensor | None, shots: Sequence[int]
    ) -> "Chosen":
        """Build from one list, whose beginnings are the shorter ones."""
        return cls({count: picks[:, :count] for count in shots}, scores)


class EvaluationSet:
    """The test queries (rows of the world's) with their candidates and the teacher's results."""

    def __init__(
        self,
        scorer: LearnerScorer,
        rows: Int64[Tensor, " queries"],
        candidates: Int64[Tensor, "queries candidates"],
        results: Sequence[TeacherResult],
        shots: Sequence[int],
        beam: int,
    ) -> None:
        self.scorer, self.rows, self.candidates, self.results = scorer, rows, candidates, results
        self.start = torch.tensor([result.baseline for result in results])
        self.first = torch.stack([result.logprob[0] for result in results])
        """Scores of the first step: (queries, candidates)."""
        self.labels: dict[int, Tensor] = {
            count: torch.tensor(
                [result.shortened(count, beam, "logprob")[0].picks for result in results]
            )
            for count in shots
        }
        """The best list of each query, by number of shots."""
        self.best = {count: self._answers(picks).logprob for count, picks in self.labels.items()}

    def measure(self, chosen: Chosen) -> dict[str, Columns]:
        """Return columns by number of shots, with one value (or None) per query.

        Utility is the gain in log-probability of the answer over no examples, regret the difference
        to the best list.
        """
        measured = {}
        for count, picks in chosen.picks.items():
            answers = self._answers(picks)
            columns: dict[str, Tensor] = {
                "accuracy": answers.right.float(),
                "utility": answers.logprob - self.start,
                "regret": self.best[count] - answers.logprob,
            }
            if chosen.scores is not None:
                columns["ndcg"] = metrics.ndcg(chosen.scores, self.first, count)
                columns["mrr"] = metrics.reciprocal_rank(chosen.scores, self.labels[count])
            measured[str(count)] = {
                name: [None if v != v else round(v, 5) for v in values.tolist()]
                for name, values in columns.items()
            }
        return measured

    def _answers(self, picks: Tensor) -> Answers:
        return self.scorer.answers(self.rows, self.candidates.gather(1, picks))


def check_health(
    scorer: LearnerScorer, results: Sequence[TeacherResult], *, shots: int = 2, beam: int = 5
) -> dict[str, float | bool]:
    """Accuracy with no, random, the best single and the best joint examples, and three checks.

    The best pair must nearly always be answered, and must beat the two best single examples.
    Without examples the answer must be a guess (`chance`): the most frequent value among the four
    objects that questions are about. `blind` is the most frequent answer for the attribute.
    """
    world = scorer.world
    queries = world.queries.rows(result.query.id for result in results)
    rows = torch.stack([world.pool.rows(result.candidates) for result in results])
    alone = ops.top_k(torch.stack([result.logprob[0] for result in results]), shots)
    best = [result.shortened(shots, beam, "logprob")[0].picks for result in results]
    picks = {
        "zero_shot": rows[:, :0],
        "random": rows[:, :shots],  # candidates are in random order
        "static": rows.gather(1, alone),
        "beam": rows.gather(1, torch.tensor(best)),
    }
    accuracy = {
        name: float(scorer.answers(queries, chosen).right.float().mean())
        for name, chosen in picks.items()
    }
    chance = float(world.guess[queries].mean())
    return {
        **accuracy,
        "queries": len(results),
        "chance": chance,
        "blind": _blind(scorer, queries.tolist()),
        "oracle_is_good": accuracy["beam"] >= ORACLE,
        "zero_shot_is_chance": accuracy["zero_shot"] <= chance + NEAR_CHANCE,
        "pairs_beat_singles": accuracy["beam"] - accuracy["static"] >= HEADROOM,
    }


def is_healthy(health: Mapping[str, float | bool]) -> bool:
    """Whether all three checks hold."""
    return all(value for value in health.values() if isinstance(value, bool))


def _blind(scorer: LearnerScorer, queries: list[int]) -> float:
    """Accuracy of the most frequent answer for each attribute."""
    payload = scorer.world.queries.payload
    assert payload is not None
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for row in queries:
        kinds[payload[row]["question"].split()[1]][payload[row]["answer"]] += 1
    return sum(max(answers.values()) for answers in kinds.values()) / len(queries)


def bits(values: Sequence[float | None]) -> str:
    """Encode correct answers as hexadecimal digits, the first query first."""
    return f"{int('1' + ''.join(str(int(value or 0)) for value in values), 2):x}"
