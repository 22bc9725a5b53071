"""Prompts of several queries together: batches by tokens, equal scores, windows of a teacher."""

from pathlib import Path

import numpy as np
import pytest
import torch
from shot_hosts import FAMILIES, picture, reader, template, text_model, tokenizer
from teach_cases import FakeScorer, PoolingFake, embedded, files_of, teach_config

from eligo.errors import EligoError
from eligo.shots import HostGenerator, HostScorer, Pool, Query, Reader, num_calls
from eligo.shots.hosts.batches import TokenBatches
from eligo.shots.hosts.prompt import Turn, UnscorableError
from eligo.shots.hosts.scorer import PoolingScorer, Request
from eligo.shots.hosts.tokens import PromptTokens
from eligo.shots.inference.evaluate import score_lists
from eligo.shots.teacher.run import teach

CPU = torch.device("cpu")


def world(tmp_path: Path, images: bool) -> tuple[Pool, Pool]:
    """Six examples and three queries; answers have one to seven tokens, or none (q2)."""

    def payload(n: int, answer: str) -> dict:
        image = picture(tmp_path / f"{n}.png", n, (40, 30 + n)) if images else None
        return {"question": f"what is {'very ' * (n % 3)}{n}?", "answer": answer, "image": image}

    answers = ("red", "a red ball", "2", "no", "all red", "yes")
    pool = Pool(
        [f"d{n}" for n in range(6)], torch.eye(6),
        payload=[payload(n, answer) for n, answer in enumerate(answers)],
    )  # fmt: skip
    turns = [payload(8, "red"), payload(9, "blue ball"), payload(7, " ")]
    return pool, Pool(["q0", "q1", "q2"], torch.eye(6)[:3], payload=turns)


REQUESTS = [
    Request(Query("q0", torch.ones(6)), [(), ("d1",), ("d1", "d2"), ("d1", "d3"), ("d1", "d4")]),
    Request(Query("q2", torch.ones(6)), [(), ("d1",)]),
    Request(Query("q1", torch.ones(6)), [("d0", "d5"), ("d0", "d2"), ("d3",), ("d0", "d1")]),
]


@pytest.mark.parametrize("placement", ["prepend", "append"])
@pytest.mark.parametrize("family", [*FAMILIES, "text"])
def test_scores_do_not_depend_on_other_queries(family: str, placement, tmp_path: Path):
    pool, queries = world(tmp_path, family != "text")
    host = reader(family)
    alone = HostScorer(host, pool, queries, placement=placement, batch_size=1, share=False)
    for tokens in (1, 100, 10_000):
        scorer = HostScorer(host, pool, queries, placement=placement, batch_tokens=tokens)
        assert isinstance(scorer, PoolingScorer)
        first, second, third = scorer.score_all(REQUESTS)
        assert isinstance(second, UnscorableError)
        for (query, lists), scores in ((REQUESTS[0], first), (REQUESTS[2], third)):
            single = [float(alone.score_lists(query, [names]).logprob) for names in lists]
            assert scores.logprob.tolist() == pytest.approx(single, abs=2e-4)
            assert len(set(single)) == len(lists)


@pytest.mark.parametrize("family", [*FAMILIES, "text"])
def test_answers_by_tokens(family: str, tmp_path: Path):
    pool, queries = world(tmp_path, family != "text")
    names, picks = ["q0", "q1", "q0", "q1"], [["d0", "d1"], [], ["d2"], ["d3", "d4", "d5"]]
    found = [
        HostGenerator(reader(family), pool, queries, batch_tokens=tokens).answers(names, picks)
        for tokens in (1, 150, 10_000)
    ]
    assert found[0] == found[1] == found[2]
    assert HostGenerator(reader(family), pool, queries).answers([], []) == []


def test_lists_of_an_evaluation_share_batches(tmp_path: Path):
    pool, queries = world(tmp_path, False)
    asked = [request.query for request in (REQUESTS[0], REQUESTS[2])]
    lists = {("none", 0): [[], []], ("a", 1): [["d1"], ["d2"]], ("b", 1): [["d1"], ["d3"]]}
    scorer = HostScorer(reader("text"), pool, queries)
    alone = score_lists(scorer, asked, lists)
    scorer.calls_together = 4096
    together = score_lists(scorer, asked, lists)
    assert list(together) == list(lists)
    for key in lists:
        assert together[key] == pytest.approx(alone[key], abs=2e-4)


def test_batches_by_tokens():
    lengths = [5, 9, 1, 3, 9, 2]
    done = TokenBatches(CPU, 18).run(lengths, list)
    assert [rows for rows, _ in done] == [[1, 4], [0, 3, 5], [2]]
    assert [rows for rows, _ in TokenBatches(CPU, 18, 1).run(lengths, list)] == [
        [1], [4], [0], [3], [5], [2],
    ]  # fmt: skip
    assert [rows for rows, _ in TokenBatches(CPU, 1).run([7, 8], list)] == [[1], [0]]


def test_batch_that_does_not_fit_into_memory_is_split():
    def work(rows: list[int]) -> int:
        if len(rows) > 3:
            raise torch.OutOfMemoryError
        return len(rows)

    batches = TokenBatches(CPU, 80)
    assert [size for _, size in batches.run([10] * 9, work)] == [2, 2, 2, 2, 1]
    assert batches.tokens == 20
    with pytest.raises(torch.OutOfMemoryError):
        TokenBatches(CPU, 1).run([10], lambda _: work([0] * 4))


TEXTS = [
    "what is very red?",
    " all",
    "red ",
    "<eos>",
    "",
    "\nred\n",
    "...",
    "user: red.\nassistant:",
]
SPLIT = (
    "{% for m in messages %}{% if loop.first %}{{ '<x>be brief<y>' }}{% endif %}{{ '<i>' + "
    "m['role'] + ' ' + m['content'] + '<v>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<i>assistant' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("chat", "splits"),
    [
        (SPLIT, True),
        (SPLIT.replace("m['content']", "m['content'] | trim"), True),
        (SPLIT.replace("<i>", "u "), False),  # tokens may reach across the cut
        ("{{ messages | length }}" + SPLIT, False),
        (template("text"), False),
        (None, False),
    ],
)
def test_ids_are_those_of_the_whole_text(chat: str | None, splits: bool):
    host = Reader(text_model(), tokenizer("text", chat_template=chat), "be brief!")
    tokens = PromptTokens(host.tokenizer, "be brief!")
    turns = [Turn(question, answer) for question in TEXTS for answer in TEXTS[:3]]
    prompts = [
        (turns[n : n + count], turns[-n]) for count in range(4) for n in range(len(turns) - count)
    ]
    for (shots, query), ids in zip(prompts, tokens.ids(prompts), strict=True):
        text = host.prompt(shots, query)
        whole = host.tokenizer(text, add_special_tokens=chat is None)["input_ids"]
        assert ids.tolist() == whole
        assert ids.dtype == np.int64
    assert tokens._is_split == splits


def test_windows_give_the_same_files(tmp_path: Path):
    """Windows end with their shard, whatever they hold."""
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    for together, sizes in ((10 * num_calls(6, 2, 2), {4, 2}), (3 * num_calls(6, 2, 2), {3, 1, 2})):
        scorer = PoolingFake(together)
        out = config.replace({"out": tmp_path / f"together{together}"})
        assert teach(out, lambda *_, scorer=scorer: scorer)["taught"] == 18
        assert {len(window) for window in scorer.windows} == sizes
        assert len(scorer.calls) == 18 * num_calls(6, 2, 2)
        assert files_of(out.out) == files_of(config.out)


def test_one_query_of_a_window_is_skipped(tmp_path: Path):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    found = teach(config, lambda *_: PoolingFake(200, mute=("t1", "t6")))
    assert (found["taught"], found["skipped"]) == (16, 2)
    assert "no token" in (config.out / "skipped.jsonl").read_text()


def test_failing_window_is_taught_one_by_one(tmp_path: Path):
    class Broken(PoolingFake):
        def score_all(self, requests):
            if any(query.id == "t6" for query, _ in requests):
                raise RuntimeError("out of luck")
            return super().score_all(requests)

    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    with pytest.raises(EligoError, match="1 of 18 queries failed three times"):
        teach(config, lambda *_: Broken(200))
    assert "out of luck" in (config.out / "failed.jsonl").read_text()


def test_kill_while_a_window_is_written(tmp_path: Path, monkeypatch):
    """The rest of the window is computed again with the same batches, and only it is written."""
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: PoolingFake(200))
    killed = config.replace({"out": tmp_path / "killed"})

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("eligo.shots.teacher.shards.save_tensors", die)
        with pytest.raises(KeyboardInterrupt):
            teach(killed, lambda *_: PoolingFake(200))
    growing = killed.out / "parts" / "00000.growing"
    lines = growing.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    growing.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    scorer = PoolingFake(200)
    assert teach(killed, lambda *_: scorer)["taught"] == 18
    assert scorer.windows[0] == ["t0", "t1", "t2", "t3"]
    assert files_of(killed.out) == files_of(config.out)


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["prepend", "append"])
def test_scores_on_a_gpu(placement, tmp_path: Path):
    """The same as on a CPU, but for rounding; the same bits in a second run."""
    pool, queries = world(tmp_path, False)
    alone = HostScorer(reader("text"), pool, queries, placement=placement, share=False)
    there = Reader(text_model().cuda(), tokenizer("text", chat_template=template("text")))
    scorer = HostScorer(there, pool, queries, placement=placement)
    assert scorer.calls_together > 1
    first, _, third = scorer.score_all(REQUESTS)
    for (query, lists), scores in ((REQUESTS[0], first), (REQUESTS[2], third)):
        assert scores.logprob.device == CPU
        expected = alone.score_lists(query, lists).logprob
        assert scores.logprob.tolist() == pytest.approx(expected.tolist(), abs=2e-3)
    again = scorer.score_all(REQUESTS)
    assert torch.equal(again[0].logprob, first.logprob)
    generators = [HostGenerator(host, pool, queries) for host in (there, reader("text"))]
    said = [one.answers(["q0", "q1"], [["d0"], []]) for one in generators]
    assert all(isinstance(text, str) for answers in said for text in answers)


def test_what_can_be_scored_is_known_without_a_call(tmp_path: Path, monkeypatch):
    pool, queries = world(tmp_path, False)
    scorer = HostScorer(reader("text"), pool, queries)
    monkeypatch.setattr("eligo.shots.hosts.scorer.span_logprobs", None)
    found = scorer.score_all([Request(request.query, []) for request in REQUESTS])
    assert [isinstance(one, UnscorableError) for one in found] == [False, True, False]
    assert len(found[0].logprob) == 0
