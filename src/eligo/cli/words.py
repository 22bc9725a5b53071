"""Words that a model reads as unknown: commands answer all the same, and say so."""

from collections.abc import Iterable
from typing import Any

from eligo.cli.console import remark
from eligo.pretrained.chat import tokenize

_SHOWN = 12


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """What stands in the text and in no vocabulary, as it is written there.

    None for tokenizers that know every text: they have no unknown token, or never use it.
    """
    if not tokenizer.is_fast:
        return []  # slow ones do not say where a piece comes from
    found = tokenize(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True)
    pieces = zip(found["input_ids"], found["offset_mapping"], strict=True)
    return [text[i:j].strip() for piece, (i, j) in pieces if piece == tokenizer.unk_token_id]


def say_unknown_words(tokenizer: Any, texts: Iterable[str]) -> None:
    """Tell of words that the model reads as unknown: of them it knows only that there is a word."""
    if unknown := list(dict.fromkeys(w for text in texts for w in unknown_words(tokenizer, text))):
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        remark(f"the model does not know these words: {', '.join(unknown[:_SHOWN])}{more}")
