"""Questions that strangers type to a LLaVA of the embedded world."""

from typing import Any

from eligo.errors import InputError

_UNKNOWN = (
    "The model knows the words of the generated scenes only, and some of these are others: its "
    "answers mean little."
)


def check_question(tokenizer: Any, text: str) -> str:
    """Refuse what is no question; returns a note on words that the model does not know."""
    if not text:
        raise InputError("text: is empty, expected a question")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    reserved = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    if found := reserved.intersection(ids):
        signs = ", ".join(sorted(tokenizer.convert_ids_to_tokens(list(found))))
        raise InputError(f"text: got {signs}, which the prompt keeps for itself; expected words")
    return _UNKNOWN if tokenizer.unk_token_id in ids else ""
