"""The exam's world: its pools, and that its scorer gives a host's numbers."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from eligo.config import load_config
from eligo.demos import HostScorer, Pool, Reader, Sampler, SamplerConfig, Scorer, teach_query
from eligo.demos.data.items import as_query
from eligo.demos.exam.health import exam_health
from eligo.demos.exam.learner_config import LearnerConfig
from eligo.demos.exam.lessons import draw_lessons
from eligo.demos.exam.world import PER_LEXICON, LearnerScorer, make_world
from eligo.scenes.vlm.model import build_processor, build_vlm

TINY = load_config(LearnerConfig, "demos/learner").smoke()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_vlm(TINY.model).eval()


@pytest.fixture(scope="module")
def world(model):
    return make_world(model, TINY.scenes, "test", 2)


def test_a_domain_is_a_lexicon(world):
    assert Counter(world.pool.domains) == {"test 0": 64, "test 1": 64}
    assert len(world.queries) > 150
    said = {
        domain: {
            payload["answer"]
            for payload, own in zip(world.pool.payload, world.pool.domains, strict=True)
            if own == domain
        }
        for domain in ("test 0", "test 1")
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


def test_lexicons_are_shared_and_other_elsewhere():
    drawn = draw_lessons(
        TINY.scenes, "test", torch.arange(2 * PER_LEXICON), torch.device("cpu"),
        per_lexicon=PER_LEXICON,
    )  # fmt: skip
    names = drawn.names.flatten(1)
    assert (names[:PER_LEXICON] == names[0]).all()
    assert not torch.equal(names[0], names[PER_LEXICON])


def test_scores_are_those_of_a_host(world, model, tmp_path: Path):
    drawn = draw_lessons(
        TINY.scenes, "test", torch.arange(2 * PER_LEXICON), torch.device("cpu"),
        per_lexicon=PER_LEXICON, unclear=0.5,
    )  # fmt: skip

    def with_images(pool: Pool) -> Pool:
        payload = []
        for name, item in zip(pool.ids, pool.payload, strict=True):
            place = world.scenes[name]
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
    scorer = LearnerScorer(model, world, batch_size=2)
    assert isinstance(scorer, Scorer)
    query, names = as_query(world.queries, 1), list(world.pool.ids[:8])
    assert scorer.baseline(query).logprob.tolist() == pytest.approx(
        host.baseline(query).logprob.tolist(), abs=1e-4
    )
    mine, theirs = (one.score(query, names[:2], names[2:7]) for one in (scorer, host))
    assert mine.num_tokens == theirs.num_tokens == 1
    assert mine.logprob.tolist() == pytest.approx(theirs.logprob.tolist(), abs=1e-4)


def test_a_teacher_can_ask_it(world, model):
    scorer, query = LearnerScorer(model, world), as_query(world.queries, 0)
    names = Sampler(world.pool, SamplerConfig(num_candidates=6)).names(query)
    lesson = teach_query(query, names, scorer, shots=2, beam=2, objective="logprob")
    assert len(lesson.beams[0].picks) == 2
    picks = [[], names[:2]]
    right = scorer.right([query.id] * 2, picks)
    best = scorer.logits([query.id] * 2, picks).argmax(-1).tolist()
    assert right == [token == world.answers[query.id] for token in best]


def test_health_tells_a_model_that_knows_nothing(world, model):
    found = exam_health(LearnerScorer(model, world), world, num_queries=6, num_candidates=5)
    assert {"zero_shot", "random", "static", "beam", "chance"} <= set(found)
    assert not found["oracle_is_good"]
    assert found["zero_shot_is_chance"]


def test_health_of_a_judge_who_needs_the_pair(world):
    """Knows the answer behind two examples of the question's two words, and nothing else."""

    class Judge(LearnerScorer):
        def logits(self, queries, picks):
            rows = torch.zeros(len(queries), 500)
            texts = dict(zip(world.pool.ids, world.pool.payload, strict=True))
            asked = dict(zip(world.queries.ids, world.queries.payload, strict=True))
            for row, (query, names) in enumerate(zip(queries, picks, strict=True)):
                words = asked[query]["question"].strip("?").split()
                known = {texts[name]["answer"] for name in names} & set(words)
                rows[row, world.answers[query]] = (-1.0, -0.5, 5.0)[len(known)]
            return rows

    found = exam_health(Judge(None, world), world, num_queries=40, beam=2)
    assert found["oracle_is_good"]
    assert found["pairs_beat_singles"]
    assert found["zero_shot"] == 0
