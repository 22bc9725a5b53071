"""The rows of the exam's table: what baselines, trained arms and oracles choose for the test queries.

All choose among the same candidates, one example after the other, so that a list of two is the
beginning of a list of four; but not the beam oracle's, nor MMR's, which has a balance for each.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from eligo import ops
from eligo.shots.baselines import DPP, KNN, MMR, Random
from eligo.shots.baselines.mmr import LAMBDAS
from eligo.shots.learner.fixed import fit_fixed
from eligo.shots.learner.measure import Chosen, ExamSet
from eligo.shots.learner.stages import Asked, Stages
from eligo.shots.model.pretrained import load_pointer
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.teacher import Lesson

ZERO, FIXED, STATIC, BEAM = "zero_shot", "best_fixed", "static_oracle", "beam_oracle"
TUNED = "mmr"
BASELINES = ("random", FIXED, "knn", TUNED, "dpp")
_AT_ONCE = 512  # queries


def baseline(name: str, stages: Stages) -> PoolSelector:
    """A baseline that has nothing to tune, on the test pool."""
    pool, most = stages.asked("test").world.pool, max(stages.config.shots)
    match name:
        case "random":
            return Random().fit([], pool)
        case "knn":
            return KNN().fit([], pool)
        case "dpp":
            return DPP().fit([], pool)
        case "best_fixed":
            return fit_fixed(stages.scorer("test"), stages.asked("test").spare, most)
    raise ValueError(name)


def tuned_mmr(stages: Stages, test: ExamSet) -> Chosen:
    """MMR with the balance that was found for each number of shots."""
    chosen, scores = {}, None
    for count, balance in balances(stages).items():
        selector = MMR(balance).fit([], test.asked.world.pool)
        chosen[count], scores = picked_by(selector, test.lessons, test.asked, count)
    return Chosen(chosen, scores)


def balances(stages: Stages) -> dict[int, float]:
    """MMR's lambda by number of shots: the one that makes answers of validation queries likeliest.

    Not the one that agrees most with the teacher's lists: many lists are as good as the best one.
    """
    shots = stages.config.shots

    def look() -> dict[str, float]:
        asked, lessons = stages.asked("validation"), stages.lessons("validation")
        scorer = stages.scorer("validation")

        def helped(balance: float, count: int) -> float:
            selector = MMR(balance).fit([], asked.world.pool)
            picks, _ = picked_by(selector, lessons, asked, count)
            found = scorer.answers(asked.queries, asked.candidates.gather(1, picks))
            return float(found.logprob.mean())

        return {str(count): max(LAMBDAS, key=partial(helped, count=count)) for count in shots}

    found = stages.kept("balances.json", {"shots": shots}, look)
    return {count: found[str(count)] for count in shots}


def picked_by(
    selector: PoolSelector, lessons: Sequence[Lesson], asked: Asked, most: int
) -> tuple[Tensor, Tensor]:
    """Picks and first scores of a selector that takes one query at a time."""
    picks, scores = [], []
    for lesson, rows in zip(lessons, asked.candidates, strict=True):
        found = selector.select(lesson.query, most, candidates=lesson.candidates)
        place = torch.full((len(selector.pool),), -1)
        place[rows] = torch.arange(len(rows))
        picks.append(place[found.indices])
        scores.append(found.scores[rows])
    return torch.stack(picks), torch.stack(scores)


@torch.no_grad()
def picked_by_model(
    run: Path, test: ExamSet, most: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Picks and first scores of the best model of a run, many queries at a time."""
    model = load_pointer(run).to(device)
    world = test.asked.world
    vectors = world.queries.vectors[test.asked.queries]
    picks, scores = [], []
    for part in torch.arange(len(vectors)).split(_AT_ONCE):
        candidates = world.pool.vectors[test.asked.candidates[part]].to(device)
        found = model.predict(vectors[part].to(device), candidates, shots=most)
        picks.append(found.selection.indices.cpu())
        scores.append(found.selection.scores.cpu())
    return torch.cat(picks), torch.cat(scores)


def oracle(name: str, test: ExamSet) -> Chosen:
    """What is best alone, or together, by the teacher's own scores."""
    if name == STATIC:
        alone = ops.top_k(test.first, max(test.labels))
        return Chosen.nested(alone, test.first, list(test.labels))
    return Chosen(test.labels, test.first)
