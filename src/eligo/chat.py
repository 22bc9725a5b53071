"""How an answer stands behind a prompt, in tokens: shared by all that score what a host says."""

from typing import Any


def spoken_ids(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """Tokens of an answer behind the end of a prompt; no special ones.

    They are encoded together, as tokenizers write the first word of a text and a later word
    differently; between them stands a space, unless the prompt ends in one (or in a line break).
    """
    gap = "" if prompt[-1:].isspace() else " "
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = tokenizer(f"{prompt}{gap}{answer}", add_special_tokens=False)["input_ids"]
    if whole[: len(before)] != before:  # the tokenizer joined the two
        before, whole = [], tokenizer(answer, add_special_tokens=False)["input_ids"]
    return list(whole[len(before) :])
