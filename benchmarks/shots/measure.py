"""Health of the learner, and outcome of the lists that a method chose, per query."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo import ops
from eligo.shots import metrics
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.model.losses import available
from eligo.shots.teacher.teacher import TeacherResult

TOP = (1, 3, 5)
COLUMNS = ("accuracy", "utility", "regret", "ndcg", "mrr", "top1", "top3", "top5", "logits_std")
Columns = dict[str, list[float | None]]
ORACLE, NEAR_CHANCE, HEADROOM = 0.90, 0.05, 0.10
"""Targets of the health check."""
NEAR = 0.05  # nats below the best list


@dataclass(frozen=True, eq=False)
class Chosen:
    """The lists that a method chose for every query."""

    picks: Mapping[int, Int64[Tensor, "queries shots"]]
    """Positions among the candidates, by number of shots."""
    scores: Float[Tensor, "queries candidates"] | None
    """Scores of the candidates at the first step."""
    steps: Mapping[int, Float[Tensor, "queries shots candidates"]] = field(default_factory=dict)
    """Scores at every step after the beginning of the best list, by number of shots; -inf: picked
    before. Empty for methods that do not score single steps."""

    @classmethod
    def nested(
        cls,
        picks: Int64[Tensor, "queries shots"],
        scores: Tensor | None,
        shots: Sequence[int],
        steps: Mapping[int, Tensor] | None = None,
    ) -> "Chosen":
        """Build from one list, whose beginnings are the shorter ones."""
        return cls({count: picks[:, :count] for count in shots}, scores, steps or {})


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
        to the best list. top1, top3 and top5 are the share of steps of the best list whose pick is
        among the k best, logits_std the spread of the scores at the first step.
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
            if count in chosen.steps:
                steps, labels = chosen.steps[count], self.labels[count]
                columns |= {f"top{k}": metrics.step_hits(steps, labels, k) for k in TOP}
                columns["logits_std"] = metrics.logits_std(steps[:, 0])
            measured[str(count)] = {
                name: [None if v != v else round(v, 5) for v in values.tolist()]
                for name, values in columns.items()
            }
        return measured

    def fixed_steps(
        self, scores: Float[Tensor, "queries candidates"]
    ) -> dict[int, Float[Tensor, "queries shots candidates"]]:
        """Scores of every step, by number of shots, of a method whose scores never change."""
        everything = torch.ones_like(scores, dtype=torch.bool)
        return {
            count: torch.where(
                available(labels, everything)[:, :-1], scores.unsqueeze(1), -torch.inf
            )
            for count, labels in self.labels.items()
        }

    def taught_steps(self) -> dict[int, Float[Tensor, "queries shots candidates"]]:
        """The teacher's own scores of every step, by number of shots."""
        return {
            count: torch.stack(
                [
                    result.step_scores(picks, "logprob")
                    for result, picks in zip(self.results, labels.tolist(), strict=True)
                ]
            ).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
            for count, labels in self.labels.items()
        }

    def near_best(self, count: int) -> dict[str, float]:
        """Mean numbers of lists, sets and first picks that are nearly as good as the best list.

        "Nearly" is at most `NEAR` below it. The search did not score all lists, so these are lower
        bounds.
        """
        found = {"lists": 0, "sets": 0, "first picks": 0}
        for result in self.results:
            lists = near_lists(result, count)
            found["lists"] += len(lists)
            found["sets"] += len({frozenset(picks) for picks in lists})
            found["first picks"] += len({picks[0] for picks in lists})
        means = {name: number / len(self.results) for name, number in found.items()}
        return {"examples": count, **means}

    def _answers(self, picks: Tensor) -> Answers:
        return self.scorer.answers(self.rows, self.candidates.gather(1, picks))


def near_lists(result: TeacherResult, count: int) -> list[tuple[int, ...]]:
    """The lists of a length that a search scored at most `NEAR` below its best one."""
    rows = (result.states >= 0).sum(1) == count - 1
    prefixes = result.states[rows, : count - 1].tolist()
    means = result.logprob[rows] / result.num_tokens
    best = means[~means.isnan()].max()
    near = (means >= best - NEAR).nonzero().tolist()
    return [(*prefixes[row], pick) for row, pick in near]


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
