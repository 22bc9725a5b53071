"""Whether the exam is one: is there anything to choose, and can the learner use it? Section 6.

The best pair must be answered nearly always, no example must help by being absent (zero shots near
chance), and a pair that was chosen as a pair must beat the two best single examples.
"""

from collections import Counter

import torch

from eligo import ops
from eligo.demos.data.draws import shuffled
from eligo.demos.data.items import as_query
from eligo.demos.data.sampler import Sampler
from eligo.demos.data.sampler_config import SamplerConfig
from eligo.demos.exam.world import ExamWorld, LearnerScorer
from eligo.demos.teach.teacher import teach_query

ORACLE, NEAR_CHANCE, HEADROOM = 0.90, 0.05, 0.10


def exam_health(
    scorer: LearnerScorer,
    world: ExamWorld,
    *,
    num_queries: int = 200,
    num_candidates: int = 32,
    shots: int = 2,
    beam: int = 5,
    seed: int = 0,
) -> dict[str, float | bool]:
    """Accuracies behind no, random, the best single and the best joint examples; a verdict."""
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=num_candidates, seed=seed))
    drawn = shuffled(torch.arange(len(world.queries)), seed, "health")[:num_queries].tolist()
    asked = [str(world.queries.ids[row]) for row in drawn]
    picks: dict[str, list[list[str]]] = {"zero_shot": [], "random": [], "static": [], "beam": []}
    for row in drawn:
        query = as_query(world.queries, row)
        names = sampler.names(query)
        lesson = teach_query(query, names, scorer, shots=shots, beam=beam, objective="logprob")
        alone = ops.top_k(lesson.logprob[0], shots).tolist()
        picks["zero_shot"].append([])
        picks["random"].append(names[:shots])  # their order means nothing
        picks["static"].append([names[place] for place in alone])
        picks["beam"].append([names[place] for place in lesson.beams[0].picks])
    found = {name: _share(scorer.right(asked, told)) for name, told in picks.items()}
    chance = _chance(world, asked)
    return {
        **found,
        "chance": chance,
        "oracle_is_good": found["beam"] >= ORACLE,
        "zero_shot_is_chance": found["zero_shot"] <= chance + NEAR_CHANCE,
        "pairs_beat_singles": found["beam"] - found["static"] >= HEADROOM,
    }


def _chance(world: ExamWorld, asked: list[str]) -> float:
    """Always the most frequent answer to a question for that attribute."""
    kinds: dict[str, Counter[int]] = {}
    rows = world.queries.rows(asked).tolist()
    assert world.queries.payload is not None
    for name, row in zip(asked, rows, strict=True):
        attribute = world.queries.payload[row]["question"].split()[1]
        kinds.setdefault(attribute, Counter())[world.answers[name]] += 1
    return sum(max(answers.values()) for answers in kinds.values()) / len(asked)


def _share(right: list[bool]) -> float:
    return sum(right) / len(right)
