"""User text for a host, and prompts in the host's chat template.

A prompt is tokenized as one string, template and user text together, so a space is put inside
everything in user text that the tokenizer would read as a control token. `<image>`, which marks the
image in LLaVA's data files, is removed: the template places the image.

A template is a program in the host's folder. `transformers` runs it in the sandbox of jinja2,
without access to files and Python. Its first prompt is rendered with bounded steps and memory as
well (only the first, as the memory limit affects all threads of the process).
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock, RLock
from types import FrameType
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import reading

PLACEHOLDER = "<image>"
"""Marks the image in LLaVA's data files."""
_SHOWN = 60  # characters of a text in a message
_MAX_TEMPLATE, _MAX_PROMPT = 200_000, 10_000_000  # characters
_MAX_STEPS = 2_000_000  # executed lines of Python; a long conversation takes thousands
_MAX_BYTES = 2**30
_RUN_BY_TEMPLATES = ("filters.py", "runtime.py", "sandbox.py", "tests.py", "utils.py")  # of jinja2
_LIMITS = Lock()  # all threads share them
_EXPECTED = "a chat template that transformers can render: correct it, or copy the folder again"
_TOKENIZERS = RLock()
_rendered: set[tuple[str, ...]] = set()  # templates that have rendered a prompt within the limits
_log = logging.getLogger("eligo")


def place_image(text: str, where: str) -> str:
    """Return a question without its `<image>` placeholder; two placeholders are an error.

    >>> place_image("<image>\\nWhat is this?", "question")
    'What is this?'
    >>> place_image("Look at <image> and tell.", "question")
    'Look at and tell.'
    """
    before, *rest = text.split(PLACEHOLDER)
    if len(rest) > 1:
        raise InputError(
            f"{where}: got {len(rest)} {PLACEHOLDER} in {text!r:.60}, expected at most one, for "
            "one image"
        )
    if not rest:
        return text
    return " ".join(part for part in (before.rstrip(), rest[0].lstrip()) if part)


def plain_text(processor: Any, text: str) -> str:
    """Return the text with a space inside every control token, such as `</s>` or `[SEP]`."""
    tokenizer = getattr(processor, "tokenizer", processor)
    own = {} if tokenizer is processor else vars(processor)
    names = {value for name, value in own.items() if name.endswith("_token")}
    extra = frozenset(str(value) for value in names if value)
    pattern = _control_tokens(tokenizer, len(tokenizer), extra)
    if pattern is None:
        return text
    return pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def tokenize(processor: Any, *args: Any, **options: Any) -> Any:
    """Call a tokenizer or processor, one thread at a time.

    A fast tokenizer stores padding and truncation as its own state, which threads would mix up. One
    without a padding token pads with its end token; masks hide the padding.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    with _TOKENIZERS:
        if options.get("padding") and getattr(tokenizer, "pad_token_id", 0) is None:
            if tokenizer.eos_token is None:
                raise InputError(
                    f"tokenizer of {_name(processor)}: names neither pad_token nor eos_token, "
                    "expected one for padding; add pad_token to tokenizer_config.json"
                )
            tokenizer.pad_token = tokenizer.eos_token
        return processor(*args, **options)


@lru_cache(maxsize=32)
def _control_tokens(tokenizer: Any, size: int, extra: frozenset[str]) -> re.Pattern[str] | None:
    """Return a pattern of all control tokens; `size` is a cache key, as tokens may be added."""
    del size
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    tokens = {*extra, *tokenizer.all_special_tokens, *(t.content for t in added if t.special)}
    # A single character is ordinary text that also serves as padding, such as CLIP's "!".
    ordered = sorted((t for t in tokens if len(t) > 1), key=lambda t: (-len(t), t))  # longest first
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def warn_truncated(
    texts: Sequence[str], counts: Sequence[int], read: int, *, what: str = "text"
) -> None:
    """Log, in one line, that texts have more word pieces (`counts`) than a model reads."""
    cut = [(count, text) for count, text in zip(counts, texts, strict=True) if count > read]
    if not cut:
        return
    most, longest = max(cut, key=lambda pair: pair[0])
    subject = f"the {what} is cut: it"
    if len(texts) > 1:
        subject = f"{len(cut)} of {len(texts)} {what}s are cut: the longest"
    shown = longest if len(longest) <= _SHOWN else f"{longest[:_SHOWN]}..."
    _log.warning("%s has %d word pieces, and the model reads %d: %r", subject, most, read, shown)


def context_of(config: Any) -> int | None:
    """Return the number of tokens that a host reads, by its config; None if it does not say."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) else None


class ContextWatch:
    """Warns about prompts longer than the context of a host: the first, and every longer one."""

    def __init__(self, model: Any) -> None:
        self.context = context_of(model.config)
        self._longest = self.context or 0

    def look(self, length: int) -> None:
        """Check the length in tokens of a prompt, or of the longest one of a batch."""
        if self.context is None or length <= self._longest:
            return
        self._longest = length
        _log.warning(
            "the prompt has %d tokens, and the context of the host is %d: its answer is not "
            "reliable; shorten the text, or give fewer examples",
            length, self.context,
        )  # fmt: skip


def render_chat(processor: Any, messages: Sequence[Any], **options: Any) -> str:
    """Render messages with the chat template of a processor or tokenizer."""
    where = f"chat template of {_name(processor)}"
    template = processor.chat_template
    templates = tuple(template.values() if isinstance(template, dict) else [template])
    with ExitStack() as limits, reading(where, _EXPECTED):
        if templates not in _rendered:
            for text in templates:
                _check_template(text)
            limits.enter_context(_bounded_memory())
            limits.enter_context(_bounded_steps(where))
        prompt = processor.apply_chat_template(list(messages), tokenize=False, **options)
        if not isinstance(prompt, str) or len(prompt) > _MAX_PROMPT:
            raise ValueError(f"it made no text of at most {_MAX_PROMPT} characters")
    _rendered.add(templates)
    return prompt


def spoken_ids(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """Return the token ids of an answer after a prompt, without special tokens.

    The two are encoded together, since tokenizers encode the first word of a text differently,
    with a space between them unless the prompt ends in whitespace.
    """
    gap, answer = "" if prompt[-1:].isspace() else " ", plain_text(tokenizer, answer)
    before = tokenize(tokenizer, prompt, add_special_tokens=False)["input_ids"]
    whole = tokenize(tokenizer, f"{prompt}{gap}{answer}", add_special_tokens=False)["input_ids"]
    if whole[: len(before)] != before:  # the tokenizer joined the two
        before, whole = [], tokenize(tokenizer, answer, add_special_tokens=False)["input_ids"]
    return list(whole[len(before) :])


def _name(processor: Any) -> str:
    tokenizer = getattr(processor, "tokenizer", processor)
    return str(getattr(tokenizer, "name_or_path", "") or type(processor).__name__)


def _check_template(template: str) -> None:
    """Refuse what the limits do not catch: very long templates, and powers (a single step)."""
    import jinja2

    if len(template) > _MAX_TEMPLATE:
        raise ValueError(f"it has {len(template)} characters, more than {_MAX_TEMPLATE}")
    tokens = jinja2.Environment().lex(template)
    if any(kind == "operator" and value == "**" for _, kind, value in tokens):
        raise ValueError("it computes powers (**)")


@contextmanager
def _bounded_steps(where: str) -> Iterator[None]:
    """Limit the number of lines that a template executes."""
    import jinja2

    library = Path(jinja2.__file__).parent
    counted = {"<template>", *(str(library / name) for name in _RUN_BY_TEMPLATES)}
    left = _MAX_STEPS

    def step(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        nonlocal left
        if frame.f_code.co_filename not in counted:
            return None
        left -= 1
        if left < 0:
            raise InputError(f"{where}: takes more than {_MAX_STEPS} steps; expected {_EXPECTED}")
        return step

    if sys.gettrace() is not None:  # a debugger, or a coverage tool
        yield
        return
    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Limit further allocations to a gigabyte, on Linux; more raises a MemoryError."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        yield
        return
    import resource

    with _LIMITS:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + _MAX_BYTES
        given = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *given]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
