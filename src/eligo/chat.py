"""Texts of users for a host: no control tokens in them, one image each, answers behind prompts.

Shared by all that write prompts or encode texts with a tokenizer of `transformers`. A prompt is
tokenized as one string, template and user text together, so user text is made plain beforehand: a
space inside whatever the tokenizer would read as a control token. `<image>`, which LLaVA's data
files hold where the image goes, is taken out: the template places the image.
"""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from eligo.errors import InputError

PLACEHOLDER = "<image>"
"""Stands for the image in LLaVA's data files."""
_SHOWN = 60  # characters of a text in a message
_log = logging.getLogger("eligo")


def place_image(text: str, where: str) -> str:
    """A question on one image without the `<image>` that stands for it; two are an error.

    >>> place_image("<image>\\nWhat is this?", "question")
    'What is this?'
    >>> place_image("Look at <image> and tell.", "question")
    'Look at and tell.'
    """
    before, *rest = text.split(PLACEHOLDER)
    if len(rest) > 1:
        raise InputError(
            f"{where}: got {len(rest)} {PLACEHOLDER} in {text!r:.60}, expected at most one: there "
            "is one image"
        )
    if not rest:
        return text
    return " ".join(part for part in (before.rstrip(), rest[0].lstrip()) if part)


def plain_text(processor: Any, text: str) -> str:
    """The text with a space inside every control token of a tokenizer (or processor).

    So `</s>` or `[SEP]` in a text stays text. A text without any is returned as it is.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    own = {} if tokenizer is processor else vars(processor)
    names = {value for name, value in own.items() if name.endswith("_token")}
    extra = frozenset(str(value) for value in names if value)
    found = _control_tokens(tokenizer, len(tokenizer), extra)
    return text if found is None else found.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


@lru_cache(maxsize=32)
def _control_tokens(tokenizer: Any, size: int, extra: frozenset[str]) -> re.Pattern[str] | None:
    """What matches any of them, the longest first; `size` changes where tokens are added."""
    del size
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    signs = {*extra, *tokenizer.all_special_tokens, *(t.content for t in added if t.special)}
    # A single character is a letter that happens to pad, such as CLIP's "!".
    ordered = sorted((sign for sign in signs if len(sign) > 1), key=lambda sign: (-len(sign), sign))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def remark_cut(
    texts: Sequence[str], counts: Sequence[int], read: int, *, what: str = "text"
) -> None:
    """Log, in one line, that texts have more word pieces (`counts`) than a model reads."""
    cut = [(count, text) for count, text in zip(counts, texts, strict=True) if count > read]
    if not cut:
        return
    most, example = max(cut, key=lambda pair: pair[0])
    which, of_them = (
        (f"the {what} is", "it")
        if len(texts) == 1
        else (f"{len(cut)} of {len(texts)} {what}s are", "the longest")
    )
    _log.warning(
        "%s cut: %s has %d word pieces, and the model reads %d: %r",
        which, of_them, most, read, example if len(example) <= _SHOWN else f"{example[:_SHOWN]}...",
    )  # fmt: skip


def remark_context(model: Any, length: int) -> None:
    """Log that a prompt is longer than the context that a host was trained for."""
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and length > longest:
        _log.warning(
            "the prompt has %d tokens, and the context of the host is %d: its answer means little; "
            "shorten the text, or give fewer examples",
            length, longest,
        )  # fmt: skip


def spoken_ids(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """Tokens of an answer behind the end of a prompt; no special ones.

    They are encoded together, as tokenizers write the first word of a text and a later word
    differently; between them stands a space, unless the prompt ends in one (or in a line break).
    """
    gap, answer = "" if prompt[-1:].isspace() else " ", plain_text(tokenizer, answer)
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = tokenizer(f"{prompt}{gap}{answer}", add_special_tokens=False)["input_ids"]
    if whole[: len(before)] != before:  # the tokenizer joined the two
        before, whole = [], tokenizer(answer, add_special_tokens=False)["input_ids"]
    return list(whole[len(before) :])
