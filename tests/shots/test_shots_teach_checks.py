"""What `teach` says before the first call: answers, contexts and hosts that do not fit; noise."""

import logging
from pathlib import Path

import pytest
import torch
from shot_hosts import template, text_model, tokenizer
from teach_cases import FakeScorer, embedded, teach_config
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

from eligo.config import load_config
from eligo.errors import InputError
from eligo.shots.config import RecordsConfig, ShotsTrainConfig
from eligo.shots.data.items import Item
from eligo.shots.inference.embed import embed, open_embedded
from eligo.shots.inference.encoders import WordsEncoder
from eligo.shots.teacher.read import NOISE_WEIGHT, read_records
from eligo.shots.teacher.run import teach
from eligo.shots.training.train import load_records, selector_task


def host(folder: Path, **changes) -> str:
    text_model(**changes).save_pretrained(folder)
    tokenizer("text", chat_template=template("text")).save_pretrained(folder)
    return str(folder)


def never(*_):
    raise AssertionError("the host was called")


def data(folder: Path, answers: list[str], question: str = "what is it?") -> None:
    items = [Item(f"t{n}", question, (answer,)) for n, answer in enumerate(answers)]
    embed(folder / "embedded", items, None, WordsEncoder(), name="words")


def test_answers_that_the_tokenizer_cannot_express(tmp_path: Path, caplog):
    name = host(tmp_path / "host")
    data(tmp_path, ["Größe", "Übung", "Straße"])
    config = teach_config(tmp_path, host={"model": name, "device": "cpu"})
    with pytest.raises(InputError, match=r"none of the 3 queries can be scored: query 't0': "):
        teach(config, never)
    assert not config.out.exists()
    data(tmp_path, ["red", "Übung", "all"])
    with caplog.at_level(logging.WARNING):
        assert teach(config)["skipped"] == 1
    assert "1 of 3 queries cannot be scored and will be skipped; query 't1'" in caplog.text


def test_prompts_longer_than_the_context(tmp_path: Path):
    name = host(tmp_path / "host", max_position_embeddings=90)
    data(tmp_path, ["red", "all", "a very red ball", "no"])
    settings = {"host": {"model": name, "device": "cpu"}, "sampler": {"num_candidates": 3}}
    with pytest.raises(InputError) as caught:
        teach(teach_config(tmp_path, **settings), never)
    message = str(caught.value)
    assert "query 't0': with 2 of its candidates (the longest is 't2') its prompt has 1" in message
    assert "the context of the host is 90" in message
    assert "query 't2': with 2" in message
    config = teach_config(tmp_path, shots=1, out=tmp_path / "one", **settings)
    assert teach(config)["taught"] == 4
    unchecked = teach_config(tmp_path, check_data=False, **settings)
    assert teach(unchecked)["taught"] == 4  # with a warning of the host


@pytest.mark.parametrize("kind", ["encoder", "vision"])
def test_host_that_does_not_continue_text(tmp_path: Path, kind: str):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "encoder":
        model = BertModel(BertConfig(**small, intermediate_size=16, vocab_size=64))
    else:
        model = ViTModel(ViTConfig(**small, intermediate_size=16, image_size=16, patch_size=8))
    model.save_pretrained(tmp_path / "host")
    tokenizer("text").save_pretrained(tmp_path / "host")
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path, host={"model": str(tmp_path / "host"), "device": "cpu"})
    expected = "cannot continue a text" if kind == "encoder" else "of type vit, which does not con"
    with pytest.raises(InputError, match=expected):
        teach(config, never)
    assert not config.out.exists()


class Useless(FakeScorer):
    """Examples never help t2 and t5."""

    def baseline(self, query):
        found = super().baseline(query)
        return (
            found._replace(logprob=torch.zeros(1))
            if query.id in ("t2", "t5")
            else (found._replace(logprob=found.logprob - 10))
        )


@pytest.mark.parametrize("objective", ["gain", "logprob"])
def test_noise_is_counted_and_weighs_less(tmp_path: Path, caplog, objective):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path, objective=objective)
    assert teach(config, lambda *_: Useless())["no list better than no examples"] == 2
    assert teach(config, never)["no list better than no examples"] == 2
    pool, queries, _ = open_embedded(config.data)
    for labels in ("best", "weighted"):
        found = read_records(config.out, pool, queries, labels=labels)
        assert found.noise == 2
        weights: dict[str, float] = {}
        for record in found.records:
            weights[record.query.id] = weights.get(record.query.id, 0.0) + record.weight
        for name, weight in weights.items():
            assert weight == pytest.approx(NOISE_WEIGHT if name in ("t2", "t5") else 1.0)
    settings = load_config(ShotsTrainConfig, "shots/v1", {"data.path": config.out})
    with caplog.at_level(logging.INFO):
        selector_task(settings, load_records(RecordsConfig(path=config.out), 6, 0))
    assert "2 of 18 queries have no list that is better than no examples" in caplog.text
