"""Words that a model reads as unknown."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eligo.cli.console import unknown_words, warn_unknown_words


def of_words(*known: str) -> PreTrainedTokenizerFast:
    vocabulary = {word: place for place, word in enumerate(("<unk>", *known))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def of_bytes(unk: str | None) -> PreTrainedTokenizerFast:
    """Of GPT-2's kind: every text has pieces, and an unknown token is only a name."""
    signs = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    made = Tokenizer(models.BPE({sign: place for place, sign in enumerate(signs)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=unk)


def test_unknown_words_are_listed_as_written(capsys):
    tokenizer = of_words("what", "is", "the", "?")
    assert unknown_words(tokenizer, "what breed is the Dog?") == ["breed", "Dog"]
    warn_unknown_words(tokenizer, ["what breed is the Dog?", "is the breed what?"])
    message = capsys.readouterr()
    assert message.err == "the model does not know these words: breed, Dog\n"
    assert message.out == ""


def test_only_the_first_unknown_words_are_listed(capsys):
    warn_unknown_words(of_words("a"), ["a " + " ".join(f"w{number}" for number in range(30))])
    assert capsys.readouterr().err.endswith("w10, w11 and 18 more\n")


@pytest.mark.parametrize("unk", [None, "<|endoftext|>"])
def test_no_message_if_every_word_is_known(unk, capsys):
    warn_unknown_words(of_bytes(unk), ["what breed is the dög? 🐕"])
    assert capsys.readouterr().err == ""
