"""Searches for many queries at once, and the health check of the learner."""

from collections.abc import Sequence

import pytest
import torch

from benchmarks.shots.list_search import fit_fixed, teach_together
from benchmarks.shots.measure import check_health, is_healthy
from eligo.scenes.vlm import build_vlm
from eligo.shots import BestFixed, Record, Sampler, SamplerConfig, TeacherResult, teach_query
from eligo.shots.learner.load import scenes_for
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.learner.world import LearnerWorld, make_world
from shipped_models import LEARNER


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_vlm(LEARNER).eval()


@pytest.fixture(scope="module")
def world(model) -> LearnerWorld:
    return make_world(model, scenes_for(LEARNER.image_size), "test", 2)


class PairScorer(LearnerScorer):
    """Answers correctly only after examples of both words of the question."""

    def answers(self, queries, picks):
        world, values = self.world, []
        for row, names in zip(queries.tolist(), picks.tolist(), strict=True):
            words = world.queries.payload[row]["question"].strip("?").split()
            answers = [world.pool.payload[name]["answer"] for name in names if name >= 0]
            # Rows break ties between equally good examples.
            values.append((-1.0, -0.5, 5.0)[len(set(answers) & set(words))] + 1e-4 * sum(names))
        found = torch.tensor(values)
        return Answers(found, found > 1, found.long())


@pytest.mark.parametrize("diversity", [0.0, 0.3])
def test_teach_together_matches_teach_query(world, model, diversity: float):
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=5))
    rows = torch.tensor([3, 60, 150])
    candidates = torch.stack([sampler.rows(world.queries.query(int(row))) for row in rows])
    settings = {"beam": 4, "diversity": diversity}
    for scorer in (PairScorer(model, world), LearnerScorer(model, world)):
        together = teach_together(scorer, rows, candidates, shots=3, **settings)
        for row, found in zip(rows.tolist(), together, strict=True):
            query = world.queries.query(row)
            alone = teach_query(
                query, sampler.names(query), scorer, shots=3, objective="logprob", **settings
            )
            assert found.query.id == query.id
            assert list(found.candidates) == list(alone.candidates)
            assert found.baseline == pytest.approx(alone.baseline, abs=1e-5)
            assert [beam.picks for beam in found.beams] == [beam.picks for beam in alone.beams]
            assert torch.equal(found.states, alone.states)
            assert torch.allclose(found.logprob, alone.logprob, atol=1e-5, equal_nan=True)
            shorter = teach_query(
                query, sampler.names(query), scorer, shots=2, objective="logprob", **settings
            )
            cut = found.shortened(2, 4, "logprob", diversity)
            assert [beam.picks for beam in cut] == [beam.picks for beam in shorter.beams]


def test_fit_fixed_matches_the_selector(world):
    scorer = PairScorer(None, world)
    _, spare = world.draw(1, 3)
    queries = [world.queries.query(int(row)) for row in spare]

    class LogProbability:
        def values(self, query, prefix, candidates):
            return scorer.score(query, prefix, candidates).logprob

    slow = BestFixed(LogProbability(), length=2).fit([Record(q, []) for q in queries], world.pool)
    fast = fit_fixed(scorer, spare, 2)
    assert fast.orders.keys() == slow.orders.keys()
    for domain, order in slow.orders.items():
        assert fast.orders[domain] == order
    assert fast.select(queries[0], 2).num_kept == 2


def taught(scorer: LearnerScorer, count: int, num_candidates: int) -> Sequence[TeacherResult]:
    world = scorer.world
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=num_candidates))
    rows, _ = world.draw(count, 0)
    candidates = torch.stack([sampler.rows(world.queries.query(int(row))) for row in rows])
    return teach_together(scorer, rows, candidates, shots=2, beam=2)


def test_health_check_refuses_a_random_model(world, model):
    scorer = LearnerScorer(model, world)
    found = check_health(scorer, taught(scorer, 3, 5), beam=2)
    assert {"zero_shot", "random", "static", "beam", "chance", "blind"} <= set(found)
    assert not found["oracle_is_good"]
    assert found["zero_shot_is_chance"]
    assert not is_healthy(found)


def test_health_check_accepts_a_model_that_needs_pairs(world):
    scorer = PairScorer(None, world)
    found = check_health(scorer, taught(scorer, 20, 32), beam=2)
    assert found["oracle_is_good"]
    assert found["pairs_beat_singles"]
    assert found["zero_shot"] == 0
    assert is_healthy(found)
