"""Whether the exam is one: is there anything to choose, and can the learner use it? Section 6.

The best pair must be answered nearly always, and a pair that was chosen as a pair must beat the two
best single examples. Without examples the answer must be a guess: what the words mean must stand
nowhere else. A guess is not blind, though. Who sees the scene and knows no word says the most
frequent value among the four objects that questions are about; that is `chance` here. (`blind` is
the most frequent answer to questions for that attribute.)
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from eligo import ops
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.teacher.teacher import Lesson

ORACLE, NEAR_CHANCE, HEADROOM = 0.90, 0.05, 0.10


def exam_health(
    scorer: LearnerScorer, lessons: Sequence[Lesson], *, shots: int = 2, beam: int = 5
) -> dict[str, float | bool]:
    """Accuracies behind no, any, the best single and the best joint examples; a verdict."""
    world = scorer.world
    queries = world.queries.rows(lesson.query.id for lesson in lessons)
    rows = torch.stack([world.pool.rows(lesson.candidates) for lesson in lessons])
    alone = ops.top_k(torch.stack([lesson.logprob[0] for lesson in lessons]), shots)
    best = [lesson.shortened(shots, beam, "logprob")[0].picks for lesson in lessons]
    picks = {
        "zero_shot": rows[:, :0],
        "random": rows[:, :shots],  # their order means nothing
        "static": rows.gather(1, alone),
        "beam": rows.gather(1, torch.tensor(best)),
    }
    found = {name: _share(scorer.answers(queries, told).right) for name, told in picks.items()}
    chance = float(world.guess[queries].mean())
    return {
        **found,
        "queries": len(lessons),
        "chance": chance,
        "blind": _blind(scorer, queries.tolist()),
        "oracle_is_good": found["beam"] >= ORACLE,
        "zero_shot_is_chance": found["zero_shot"] <= chance + NEAR_CHANCE,
        "pairs_beat_singles": found["beam"] - found["static"] >= HEADROOM,
    }


def is_healthy(health: dict[str, float | bool]) -> bool:
    """Whether all three hold."""
    return all(value for value in health.values() if isinstance(value, bool))


def _blind(scorer: LearnerScorer, queries: list[int]) -> float:
    """Always the most frequent answer to a question for that attribute."""
    payload = scorer.world.queries.payload
    assert payload is not None
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for row in queries:
        kinds[payload[row]["question"].split()[1]][payload[row]["answer"]] += 1
    return sum(max(answers.values()) for answers in kinds.values()) / len(queries)


def _share(right: Tensor) -> float:
    return float(right.float().mean())
