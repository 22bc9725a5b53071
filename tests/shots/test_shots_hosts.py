"""Hosts: which tokens are scored, their probabilities, and generated answers."""

import pytest
import torch
from shot_hosts import FAMILIES, picture, processor, reader, text_model, tokenizer

from eligo.errors import InputError
from eligo.shots import Pool, Query
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.prompt import (
    Turn,
    UnscorableError,
    answer_span,
    in_prompt_order,
    template_hash,
    write_prompt,
)
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.scorer import HostScorer, Scorer


def world(tmp_path, images: bool, answers=("red", "a red ball", "2", "no")):
    """Four examples and two queries."""

    def payload(n, answer):
        image = picture(tmp_path / f"{n}.png", n, (40, 30 + n)) if images else None
        return {"question": f"what is {'very ' * (n % 3)}{n}?", "answer": answer, "image": image}

    shots = [payload(n, answer) for n, answer in enumerate(answers)]
    turns = [payload(8, "red"), payload(9, "blue ball")]
    pool = Pool([f"d{n}" for n in range(4)], torch.eye(4), payload=shots)
    return pool, Pool(["q0", "q1"], torch.eye(4)[:2], payload=turns)


def query(name: str) -> Query:
    return Query(name, torch.ones(4))


def by_hand(host: Reader, shots: list[Turn], question: Turn) -> tuple[float, str]:
    """One row, without padding: the loss of a stock model whose labels are the answer."""
    prompt = host.encode([shots], [question])
    span = torch.tensor(
        [answer_span(host.processor, host.prompt(shots, question), question.answer)]
    )
    ids = torch.cat([prompt["input_ids"], span], 1)
    labels = torch.cat([torch.full_like(prompt["input_ids"], -100), span], 1)
    more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    if "mm_token_type_ids" in prompt:
        kinds = prompt["mm_token_type_ids"]
        more["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(span)], 1)
    with torch.no_grad():
        loss = host.model(**{**prompt, **more}).loss
    return -float(loss) * span.shape[1], host.tokenizer.decode(span[0])


@pytest.mark.parametrize("family", [*FAMILIES, "text"])
def test_scores_match_a_plain_forward_pass(family: str, tmp_path):
    host = reader(family)
    pool, queries = world(tmp_path, family != "text")
    scorer = HostScorer(host, pool, queries, batch_size=2)
    assert isinstance(scorer, Scorer)
    turns = {name: Turn.of(item, name) for name, item in zip(pool.ids, pool.payload, strict=True)}
    for name, item in zip(queries.ids, queries.payload, strict=True):
        question = Turn.of(item, name)
        expected, answer = by_hand(host, [], question)
        assert answer.strip() == question.answer
        found = scorer.baseline(query(name))
        assert found.logprob.tolist() == pytest.approx([expected], abs=2e-4)
        # The first pick is next to the question, after the later ones.
        found = scorer.score(query(name), ["d1"], ["d0", "d2", "d3"])
        hands = [by_hand(host, [turns[c], turns["d1"]], question)[0] for c in ("d0", "d2", "d3")]
        assert found.logprob.tolist() == pytest.approx(hands, abs=2e-4)
        assert len(set(hands)) == 3
        assert found.num_tokens == len(
            host.tokenizer(answer, add_special_tokens=False)["input_ids"]
        )
        again = scorer.score(query(name), ["d1"], ["d0", "d2", "d3"])
        assert torch.equal(again.logprob, found.logprob)


@pytest.mark.parametrize("family", [*FAMILIES, "text"])
def test_answers_do_not_depend_on_the_batch(family: str, tmp_path):
    host = reader(family)
    pool, queries = world(tmp_path, family != "text")
    together = HostGenerator(host, pool, queries, max_new_tokens=5)
    picks = [["d0", "d1"], ["d2"], [], ["d3", "d0", "d2"], ["d1"], ["d3"]]
    names = ["q0", "q1"] * 3
    alone = [together.answer(name, row) for name, row in zip(names, picks, strict=True)]
    assert together.answers(names, picks) == alone
    assert any(alone)


@pytest.mark.parametrize("family", ["llava", "text"])
def test_generation_picks_the_likeliest_token(family: str, tmp_path, monkeypatch):
    host = reader(family)
    pool, queries = world(tmp_path, family != "text")
    answer = HostGenerator(host, pool, queries, max_new_tokens=1).answer("q0", ["d0"])
    inputs = host.encode([[Turn.of(pool.payload[0], "")]], [Turn.of(queries.payload[0], "")])
    with torch.no_grad():
        best = host.model(**inputs).logits[0, -1].argmax()
    assert answer == host.tokenizer.decode([best], skip_special_tokens=True).strip()
    # Also for hosts with their own generation settings (such as Qwen2.5-VL).
    monkeypatch.setattr(host.model.generation_config, "num_beams", 3)
    for penalty in (50.0, 0.01):  # penalising and favouring tokens of the prompt
        monkeypatch.setattr(host.model.generation_config, "repetition_penalty", penalty)
        assert HostGenerator(host, pool, queries, max_new_tokens=1).answer("q0", ["d0"]) == answer


class Counted:
    """Records the tokens that a model processes."""

    def __init__(self, model) -> None:
        self.tokens = 0
        self.hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, args, kwargs) -> None:
        self.tokens += kwargs["input_ids"].numel()

    def __enter__(self) -> "Counted":
        return self

    def __exit__(self, *_) -> None:
        self.hook.remove()


@pytest.mark.parametrize("family", [*FAMILIES, "text"])
def test_append_processes_the_picks_once(family: str, tmp_path):
    """Same scores from fewer tokens; hosts that compute positions themselves process all."""
    host = reader(family)
    pool, queries = world(tmp_path, family != "text")
    scorers = [
        HostScorer(host, pool, queries, placement="append", batch_size=2, share=share)
        for share in (True, False)
    ]
    question = (query("q1"), ["d1"], ["d0", "d2", "d3"])
    with Counted(host.model) as few:
        shared = scorers[0].score(*question)
    with Counted(host.model) as many:
        whole = scorers[1].score(*question)
    assert shared.logprob.tolist() == pytest.approx(whole.logprob.tolist(), abs=2e-4)
    assert shared.num_tokens == whole.num_tokens
    assert (few.tokens < many.tokens) == (family != "qwen")
    turns = {name: Turn.of(item, name) for name, item in zip(pool.ids, pool.payload, strict=True)}
    hand, _ = by_hand(host, [turns["d1"], turns["d2"]], Turn.of(queries.payload[1], ""))
    assert float(shared.logprob[1]) == pytest.approx(hand, abs=2e-4)


@pytest.mark.parametrize("family", ["llava", "text"])
def test_template_that_counts_turns(family: str, tmp_path):
    """A template that depends on the number of later turns cannot be split into parts.

    With images, prompts are then processed whole; without, by their first tokens in common.
    """
    usual = reader(family)
    counting = "{{ messages | length }}" + str(usual.processor.chat_template)
    if family == "text":
        host = Reader(text_model(), tokenizer("text", chat_template=counting))
    else:
        other = processor(family)
        other.chat_template = counting
        host = Reader(usual.model, other)
    pool, queries = world(tmp_path, family != "text")
    scorers = [
        HostScorer(host, pool, queries, placement="append", share=share) for share in (True, False)
    ]
    found = [scorer.score(query("q0"), ["d1"], ["d0", "d2"]).logprob for scorer in scorers]
    if family == "text":
        assert found[0].tolist() == pytest.approx(found[1].tolist(), abs=2e-4)
    else:
        assert torch.equal(*found)


def test_order_of_shots_in_the_prompt():
    assert in_prompt_order([1, 2, 3], "prepend") == [3, 2, 1]
    assert in_prompt_order([1, 2, 3], "append") == [1, 2, 3]


def test_host_without_a_template(tmp_path):
    plain = Reader(text_model(), tokenizer("text"), "be brief!")
    shots = [Turn("one?", "1"), Turn("two?", "2")]
    assert plain.prompt(shots, Turn("three?", "3")) == (
        "Question: one? be brief!\nAnswer: 1\n\nQuestion: two? be brief!\nAnswer: 2\n\n"
        "Question: three? be brief!\nAnswer:"
    )
    assert answer_span(plain.processor, "answer:", "red") == [
        plain.tokenizer.convert_tokens_to_ids("Ġred")
    ]
    assert template_hash(plain.processor, "") != template_hash(plain.processor, "be brief!")
    llava = reader("llava").processor
    assert write_prompt(llava, [], Turn("q?", "", "x.png")) == "user:<image> q?.\nassistant:"


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_in_text_stay_text(family: str, tmp_path):
    host = reader(family)
    sign, end = host.processor.image_token, host.tokenizer.eos_token
    image = host.tokenizer.convert_tokens_to_ids(sign)
    shown = picture(tmp_path / "x.png", 1, (40, 30))
    usual, odd = (
        host.encode([[Turn("one?", answer, shown)]], [Turn(question, "", shown)])
        for answer, question in (("1", "two?"), (f"1{end}{sign}", f"two? {sign[:-1]}{sign}{end}"))
    )
    for token in (image, host.tokenizer.eos_token_id):
        ids = [inputs["input_ids"] for inputs in (usual, odd)]
        assert (ids[0] == token).sum() == (ids[1] == token).sum()
    placed = host.prompt([], Turn("<image>\ntwo?", "", shown))
    assert placed == host.prompt([], Turn("two?", "", shown))
    with pytest.raises(InputError, match="got 2 <image>"):
        host.prompt([], Turn("<image><image> two?", "", shown))
    plain = reader("text")  # an ordinary word for this tokenizer
    assert sign in plain.prompt([], Turn(f"what is {sign}?", ""))


def test_unscorable_answers_are_refused(tmp_path):
    host = reader("text")
    pool, _ = world(tmp_path, False)
    empty = Pool(["q"], torch.eye(4)[:1], payload=[{"question": "x?", "answer": " "}])
    with pytest.raises(UnscorableError, match="has no token"):
        HostScorer(host, pool, empty).baseline(query("q"))
    foreign = Pool(["q"], torch.eye(4)[:1], payload=[{"question": "x?", "answer": "Größe"}])
    with pytest.raises(UnscorableError, match=r"reads .* in the host's tokens"):
        HostScorer(host, pool, foreign).baseline(query("q"))
    _, queries_of_world = world(tmp_path, True)
    with pytest.raises(InputError, match="reads text only"):
        HostScorer(host, pool, queries_of_world).baseline(query("q0"))
    with pytest.raises(InputError, match="expected a mapping with question"):
        HostScorer(host, pool, Pool(["q"], torch.eye(4)[:1])).baseline(query("q"))
