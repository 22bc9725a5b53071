"""Messages about words that are not in the vocabulary of a model."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eligo.cli.console import unknown_words, warn_unknown_words


def word_tokenizer(*known: str) -> PreTrainedTokenizerFast:
    vocabulary = {word: place for place, word in enumerate(("<unk>", *known))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def byte_tokenizer(unk: str | None) -> PreTrainedTokenizerFast:
    """Like that of GPT-2: encodes any text, and its unknown token is never used."""
    signs = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(signs)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unk)


def test_unknown_words_are_listed_as_written(capsys):
    tokenizer = word_tokenizer("what", "is", "the", "?")
    assert unknown_words(tokenizer, "what breed is the Dog?") == ["breed", "Dog"]
    warn_unknown_words(tokenizer, ["what breed is the Dog?", "is the breed what?"])
    message = capsys.readouterr()
    assert message.err == "the model does not know these words: breed, Dog\n"
    assert message.out == ""


def test_only_the_first_unknown_words_are_listed(capsys):
    warn_unknown_words(word_tokenizer("a"), ["a " + " ".join(f"w{number}" for number in range(30))])
    assert capsys.readouterr().err.endswith("w10, w11 and 18 more\n")


@pytest.mark.parametrize("unk", [None, "<|endoftext|>"])
def test_no_message_if_every_word_is_known(unk, capsys):
    warn_unknown_words(byte_tokenizer(unk), ["what breed is the dög? 🐕"])
    assert capsys.readouterr().err == ""
