"""Whether a tokenizer belongs to its model, and fingerprints of weights."""

import logging
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertConfig, BertModel, GPT2Config, LlamaConfig, LlamaModel
from transformers import PreTrainedTokenizerFast as Fast

from eligo.errors import InputError
from eligo.pretrained.identity import (
    ENCODER,
    GENERATOR,
    check_tokenizer,
    refuse_encoder,
    same_weights,
    sampled_weights,
    tokenizer_fingerprint,
)

WORDS = ["a", "photo", "of", "red", "ball", "left", "two", "boxes", "on", "the", "floor"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


def tokenizer(words: list[str], **special: str) -> Fast:
    listed = {word: place for place, word in enumerate(["<pad>", "<unk>", *words])}
    word_level = Tokenizer(models.WordLevel(listed, unk_token="<unk>"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    return Fast(tokenizer_object=word_level, unk_token="<unk>", pad_token="<pad>", **special)


def bert(rows: int) -> BertModel:
    return BertModel(BertConfig(**SIZES, num_attention_heads=2, vocab_size=rows))


def llama(seed: int = 0, **changes) -> LlamaModel:
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_attention_heads": 2, "vocab_size": 13, **changes}
    return LlamaModel(LlamaConfig(**sizes))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_folder_without_a_tokenizer_is_refused(tmp_path: Path, kind: str):
    if kind == "bert":
        bert(600).save_pretrained(tmp_path)
    else:
        GPT2Config(vocab_size=600).save_pretrained(tmp_path)
    empty = AutoTokenizer.from_pretrained(tmp_path)  # transformers creates an empty one
    with pytest.raises(InputError, match=r"holds no tokenizer.*tokenizer\.json"):
        check_tokenizer(empty, bert(600), "FOLDER", least=GENERATOR)


@pytest.mark.parametrize(
    ("rows", "least", "message"),
    [
        (13, ENCODER, None),
        (14, ENCODER, None),  # tables are padded
        (20, GENERATOR, None),
        (20, ENCODER, "got 13 tokens, expected about 20"),
        (30, GENERATOR, "got 13 tokens, expected about 30"),
        (12, GENERATOR, "ids up to 12, expected ids below 12"),
    ],
)
def test_vocabulary_must_fit_the_embeddings(rows: int, least: float, message: str | None):
    if message is None:
        check_tokenizer(tokenizer(WORDS), bert(rows), "FOLDER", least=least)
        return
    with pytest.raises(InputError, match=f"FOLDER: .*another model's: .*{message}"):
        check_tokenizer(tokenizer(WORDS), bert(rows), "FOLDER", least=least)


def test_special_tokens_may_lie_outside_the_table():
    words = tokenizer(WORDS)
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert max(words.get_vocab().values()) == 13
    check_tokenizer(words, bert(13), "FOLDER", least=ENCODER)


def test_mostly_unknown_words_are_logged(caplog):
    with caplog.at_level(logging.WARNING, "eligo"):
        check_tokenizer(tokenizer([f"w{n}" for n in range(11)]), bert(13), "FOLDER", least=ENCODER)
    assert "FOLDER: its tokenizer reads 100%" in caplog.text


def test_models_without_word_embeddings_are_not_checked():
    check_tokenizer(tokenizer(WORDS), torch.nn.Linear(2, 2), "FOLDER", least=ENCODER)


def test_fingerprints_of_tokenizers(tmp_path: Path):
    first = tokenizer_fingerprint(tokenizer(WORDS))
    tokenizer(WORDS).save_pretrained(tmp_path)
    assert tokenizer_fingerprint(AutoTokenizer.from_pretrained(tmp_path)) == first
    assert tokenizer_fingerprint(tokenizer(WORDS[::-1])) != first
    assert tokenizer_fingerprint(tokenizer(WORDS, eos_token="floor")) != first


def test_encoder_only_models_are_refused_as_hosts():
    with pytest.raises(InputError, match=r"FOLDER: is an encoder \(bert\)"):
        refuse_encoder(BertConfig(), "FOLDER")
    refuse_encoder(BertConfig(is_decoder=True), "FOLDER")
    refuse_encoder(LlamaConfig(), "FOLDER")


def test_weights_in_other_precisions_are_the_same():
    stored = sampled_weights(llama())
    assert len(stored) >= 14
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert same_weights(llama().to(dtype), stored)
    assert not same_weights(llama(seed=1), stored)


def test_further_training_changes_the_sampled_weights():
    stored, other = sampled_weights(llama()), llama()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert not same_weights(other, stored)
