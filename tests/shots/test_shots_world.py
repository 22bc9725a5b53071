"""The exam's world: its pools, and that its scorer gives a host's numbers."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from eligo.config import load_config
from eligo.errors import InputError
from eligo.scenes import words
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.vlm import build_processor, build_vlm
from eligo.shots import (
    BestFixed,
    HostScorer,
    Pool,
    Reader,
    Record,
    Sampler,
    SamplerConfig,
    Scorer,
    teach_query,
)
from eligo.shots.data.items import as_query
from eligo.shots.learner.fixed import fit_fixed
from eligo.shots.learner.health import exam_health, is_healthy
from eligo.shots.learner.learner_config import LearnerConfig
from eligo.shots.learner.lessons import EXAMPLES, QUESTIONS, draw_lessons
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.learner.teaching import teach_together
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON, make_world

TINY = load_config(
    LearnerConfig, Path(__file__).parents[2] / "benchmarks" / "shots" / "learner.yaml"
).smoke()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_vlm(TINY.model).eval()


@pytest.fixture(scope="module")
def world(model):
    return make_world(model, TINY.scenes, "test", 2)


@pytest.fixture(scope="module")
def drawn():
    first = FIRST_LEXICON * PER_LEXICON
    return draw_lessons(
        TINY.scenes, "test", torch.arange(first, first + 2 * PER_LEXICON), torch.device("cpu"),
        per_lexicon=PER_LEXICON, unclear=0.5,
    )  # fmt: skip


def test_a_domain_is_a_lexicon(world):
    domains = [f"test {FIRST_LEXICON + n}" for n in range(2)]
    assert Counter(world.pool.domains) == dict.fromkeys(domains, 64)
    assert len(world.queries) > 150
    said = {
        domain: {
            payload["answer"]
            for payload, own in zip(world.pool.payload, world.pool.domains, strict=True)
            if own == domain
        }
        for domain in domains
    }
    assert all(4 <= len(words) <= 8 for words in said.values())
    for payload, domain in zip(world.queries.payload, world.queries.domains, strict=True):
        known = [w for w in payload["question"].strip("?").split() if w in said[domain]]
        assert len(known) == 2


def test_candidates_stay_in_their_domain(world):
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=32))
    query = as_query(world.queries, 3)
    rows = sampler.rows(query).tolist()
    assert len(rows) == 32
    assert {world.pool.domains[row] for row in rows} == {query.domain}


def test_lexicons_are_shared_and_other_elsewhere(drawn):
    names = drawn.names.flatten(1)
    assert (names[:PER_LEXICON] == names[0]).all()
    assert not torch.equal(names[0], names[PER_LEXICON])


def test_a_guess_is_by_the_most_frequent_value(drawn):
    graph = drawn.rendered.graph
    for lesson in range(len(drawn)):
        objects = graph.attributes[lesson * (EXAMPLES + 1) + EXAMPLES, :4].tolist()
        for number in range(QUESTIONS):
            if not drawn.valid[lesson, number]:
                continue
            asked = ["size", "colour", "texture", "shape"].index(
                VOCABULARY[int(drawn.text[lesson, number, 1])]
            )
            names = [words.name(asked, found[asked]) for found in objects]
            times = Counter(names)
            frequent = [name for name, count in times.items() if count == max(times.values())]
            answer = VOCABULARY[int(drawn.answer[lesson, number])]
            expected = (answer in frequent) / len(frequent)
            assert float(drawn.guess[lesson, number]) == pytest.approx(expected)


def test_queries_are_drawn_from_every_lexicon(world):
    asked, spare = world.draw(5, 3)
    assert len(asked) == 10
    assert len(spare) == 6
    assert not set(asked.tolist()) & set(spare.tolist())
    domains = Counter(world.queries.domains[row] for row in asked.tolist())
    assert set(domains.values()) == {5}
    with pytest.raises(InputError, match="expected at most"):
        world.draw(100, 100)


def test_scores_are_those_of_a_host(world, model, drawn, tmp_path: Path):
    scenes = {
        str(name): int(str(group).removeprefix("scene "))
        for pool in (world.pool, world.queries)
        for name, group in zip(pool.ids, pool.groups, strict=True)
    }

    def with_images(pool: Pool) -> Pool:
        payload = []
        for name, item in zip(pool.ids, pool.payload, strict=True):
            place = scenes[name]
            path = tmp_path / f"{place}.png"
            pixels = drawn.rendered.rgb[place].permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(path)
            payload.append({**item, "image": str(path)})
        return Pool(pool.ids, pool.embeddings, payload=payload)

    host = HostScorer(
        Reader(model, build_processor(TINY.model)),
        with_images(world.pool.take(torch.arange(8))),
        with_images(world.queries.take(torch.arange(2))),
    )
    scorer = LearnerScorer(model, world, tokens=300)
    assert isinstance(scorer, Scorer)
    query, names = as_query(world.queries, 1), list(world.pool.ids[:8])
    assert scorer.baseline(query).logprob.tolist() == pytest.approx(
        host.baseline(query).logprob.tolist(), abs=1e-4
    )
    mine, theirs = (one.score(query, names[:2], names[2:7]) for one in (scorer, host))
    assert mine.num_tokens == theirs.num_tokens == 1
    assert mine.logprob.tolist() == pytest.approx(theirs.logprob.tolist(), abs=1e-4)


def test_many_prompts_are_answered_as_one(world, model):
    """In any order, number, length; -1 is no example."""
    scorer = LearnerScorer(model, world)
    queries = torch.tensor([0, 5, 9, 0, 5])
    picks = torch.tensor([[-1, -1], [3, -1], [40, 2], [7, 8], [3, 1]])
    together = scorer.answers(queries, picks)
    for row in range(5):
        kept = picks[row][picks[row] >= 0]
        alone = scorer.answers(queries[row : row + 1], kept[None])
        assert float(together.logprob[row]) == pytest.approx(float(alone.logprob), abs=1e-5)
    few = LearnerScorer(model, world, tokens=1).answers(queries, picks)
    assert torch.allclose(few.logprob, together.logprob, atol=1e-5)
    assert torch.equal(few.right, together.right)
    other = LearnerScorer(model, world, placement="append").answers(queries, picks.flip(1))
    assert torch.allclose(other.logprob, together.logprob, atol=1e-5)


class Judge(LearnerScorer):
    """Knows the answer behind two examples of the question's two words, and nothing else."""

    def answers(self, queries, picks):
        world, values = self.world, []
        for row, names in zip(queries.tolist(), picks.tolist(), strict=True):
            words = world.queries.payload[row]["question"].strip("?").split()
            told = [world.pool.payload[name]["answer"] for name in names if name >= 0]
            # Which of several good examples is better is decided by their rows.
            values.append((-1.0, -0.5, 5.0)[len(set(told) & set(words))] + 1e-4 * sum(names))
        found = torch.tensor(values)
        return Answers(found, found > 1, found.long())


def test_teaching_together_is_teaching_one_by_one(world, model):
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=5))
    rows = torch.tensor([3, 60, 150])
    candidates = torch.stack([sampler.rows(as_query(world.queries, int(row))) for row in rows])
    for scorer in (Judge(model, world), LearnerScorer(model, world)):
        together = teach_together(scorer, rows, candidates, shots=3, beam=4)
        for row, found in zip(rows.tolist(), together, strict=True):
            query = as_query(world.queries, row)
            alone = teach_query(
                query, sampler.names(query), scorer, shots=3, beam=4, objective="logprob"
            )
            assert found.query.id == query.id
            assert list(found.candidates) == list(alone.candidates)
            assert found.baseline == pytest.approx(alone.baseline, abs=1e-5)
            assert [beam.picks for beam in found.beams] == [beam.picks for beam in alone.beams]
            assert torch.equal(found.states, alone.states)
            assert torch.allclose(found.logprob, alone.logprob, atol=1e-5, equal_nan=True)
            shorter = teach_query(
                query, sampler.names(query), scorer, shots=2, beam=4, objective="logprob"
            )
            cut = found.shortened(2, 4, "logprob")
            assert [beam.picks for beam in cut] == [beam.picks for beam in shorter.beams]


def test_fixed_lists_are_those_of_the_selector(world):
    judge = Judge(None, world)
    _, spare = world.draw(1, 3)
    queries = [as_query(world.queries, int(row)) for row in spare]

    class Worth:
        def values(self, query, prefix, candidates):
            return judge.score(query, prefix, candidates).logprob

    slow = BestFixed(Worth(), length=2).fit([Record(q, []) for q in queries], world.pool)
    fast = fit_fixed(judge, spare, 2)
    assert fast.orders.keys() == slow.orders.keys()
    for domain, order in slow.orders.items():
        assert fast.orders[domain] == order
    assert fast.select(queries[0], 2).num_kept == 2


def lessons_of(scorer, world, count: int, num_candidates: int):
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=num_candidates))
    rows, _ = world.draw(count, 0)
    candidates = torch.stack([sampler.rows(as_query(world.queries, int(row))) for row in rows])
    return teach_together(scorer, rows, candidates, shots=2, beam=2)


def test_health_tells_a_model_that_knows_nothing(world, model):
    scorer = LearnerScorer(model, world)
    found = exam_health(scorer, lessons_of(scorer, world, 3, 5), beam=2)
    assert {"zero_shot", "random", "static", "beam", "chance", "blind"} <= set(found)
    assert not found["oracle_is_good"]
    assert found["zero_shot_is_chance"]
    assert not is_healthy(found)


def test_health_of_a_judge_who_needs_the_pair(world):
    judge = Judge(None, world)
    found = exam_health(judge, lessons_of(judge, world, 20, 32), beam=2)
    assert found["oracle_is_good"]
    assert found["pairs_beat_singles"]
    assert found["zero_shot"] == 0
    assert is_healthy(found)
