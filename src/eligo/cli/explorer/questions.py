"""Questions that strangers type to a LLaVA of the embedded world."""

from typing import Any

from eligo.errors import InputError
from eligo.pretrained.chat import place_image, plain_text, tokenize

_UNKNOWN = (
    "The model knows the words of the generated scenes only, and some of these are others: its "
    "answers mean little."
)


def check_question(tokenizer: Any, text: str) -> str:
    """Refuse what is no question; returns a note on words that the model does not know."""
    text = place_image(text, "text")
    if not text.strip():
        raise InputError("text: is empty, expected a question")
    ids = tokenize(tokenizer, plain_text(tokenizer, text), add_special_tokens=False)["input_ids"]
    return _UNKNOWN if tokenizer.unk_token_id in ids else ""
