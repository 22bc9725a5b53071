"""Check questions; those for the tiny LLaVA of the generated scenes also word by word."""

from typing import Any

from eligo.errors import InputError
from eligo.pretrained.chat import place_image, plain_text, tokenize

_UNKNOWN = (
    "The model knows only the words of the generated scenes; some of these words are unknown, so "
    "its answer means little."
)


def refuse_empty(text: str) -> str:
    """Return a question without the mark of its image; refuse one without words."""
    text = place_image(text, "text")
    if not text.strip():
        raise InputError("text: is empty, expected a question")
    return text


def check_question(tokenizer: Any, text: str) -> str:
    """Refuse an empty question; return a note if the model does not know some words."""
    text = refuse_empty(text)
    ids = tokenize(tokenizer, plain_text(tokenizer, text), add_special_tokens=False)["input_ids"]
    return _UNKNOWN if tokenizer.unk_token_id in ids else ""
