"""The world of the learner: its pools, and a scorer that matches that of a host."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.scenes import words
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.vlm import build_processor, build_vlm
from eligo.shots import HostScorer, Pool, Reader, Sampler, SamplerConfig, Scorer
from eligo.shots.learner.lessons import EXAMPLES, QUESTIONS, draw_lessons
from eligo.shots.learner.load import scenes_for
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON, make_world
from shipped_models import LEARNER

SCENES = scenes_for(LEARNER.image_size)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_vlm(LEARNER).eval()


@pytest.fixture(scope="module")
def world(model):
    return make_world(model, SCENES, "test", 2)


@pytest.fixture(scope="module")
def drawn():
    first = FIRST_LEXICON * PER_LEXICON
    return draw_lessons(
        SCENES, "test", torch.arange(first, first + 2 * PER_LEXICON), torch.device("cpu"),
        per_lexicon=PER_LEXICON, unclear=0.5,
    )  # fmt: skip


def test_each_domain_is_a_lexicon(world):
    domains = [f"test {FIRST_LEXICON + n}" for n in range(2)]
    assert Counter(world.pool.domains) == dict.fromkeys(domains, 64)
    assert len(world.queries) > 150
    answers = {
        domain: {
            payload["answer"]
            for payload, own in zip(world.pool.payload, world.pool.domains, strict=True)
            if own == domain
        }
        for domain in domains
    }
    assert all(4 <= len(words) <= 8 for words in answers.values())
    for payload, domain in zip(world.queries.payload, world.queries.domains, strict=True):
        known = [w for w in payload["question"].strip("?").split() if w in answers[domain]]
        assert len(known) == 2


def test_candidates_stay_in_their_domain(world):
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=32))
    query = world.queries.query(3)
    rows = sampler.rows(query).tolist()
    assert len(rows) == 32
    assert {world.pool.domains[row] for row in rows} == {query.domain}


def test_lessons_of_a_lexicon_share_its_words(drawn):
    names = drawn.names.flatten(1)
    assert (names[:PER_LEXICON] == names[0]).all()
    assert not torch.equal(names[0], names[PER_LEXICON])


def test_blind_guess_is_the_most_frequent_value(drawn):
    graph = drawn.rendered.graph
    for lesson in range(len(drawn)):
        objects = graph.attributes[lesson * (EXAMPLES + 1) + EXAMPLES, :4].tolist()
        for number in range(QUESTIONS):
            if not drawn.valid[lesson, number]:
                continue
            attribute = ["size", "colour", "texture", "shape"].index(
                VOCABULARY[int(drawn.text[lesson, number, 1])]
            )
            names = [words.name(attribute, found[attribute]) for found in objects]
            times = Counter(names)
            frequent = [name for name, count in times.items() if count == max(times.values())]
            answer = VOCABULARY[int(drawn.answer[lesson, number])]
            expected = (answer in frequent) / len(frequent)
            assert float(drawn.guess[lesson, number]) == pytest.approx(expected)


def test_queries_are_drawn_from_every_lexicon(world):
    rows, spare = world.draw(5, 3)
    assert len(rows) == 10
    assert len(spare) == 6
    assert not set(rows.tolist()) & set(spare.tolist())
    domains = Counter(world.queries.domains[row] for row in rows.tolist())
    assert set(domains.values()) == {5}
    with pytest.raises(InputError, match="expected at most"):
        world.draw(100, 100)


def test_scores_match_a_host_scorer(world, model, drawn, tmp_path: Path):
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
        Reader(model, build_processor(LEARNER)),
        with_images(world.pool.take(torch.arange(8))),
        with_images(world.queries.take(torch.arange(2))),
    )
    scorer = LearnerScorer(model, world, tokens=300)
    assert isinstance(scorer, Scorer)
    query, names = world.queries.query(1), list(world.pool.ids[:8])
    assert scorer.baseline(query).logprob.tolist() == pytest.approx(
        host.baseline(query).logprob.tolist(), abs=1e-4
    )
    mine, theirs = (one.score(query, names[:2], names[2:7]) for one in (scorer, host))
    assert mine.num_tokens == theirs.num_tokens == 1
    assert mine.logprob.tolist() == pytest.approx(theirs.logprob.tolist(), abs=1e-4)


def test_batches_of_prompts_match_single_prompts(world, model):
    """In any order, number and length; -1 means no example."""
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
