"""Prompts and answers of a host, in its own chat template and tokens; shared by all families.

A template is a program that comes with the host's files. `transformers` runs it in the sandbox of
jinja2, which keeps it from files and from Python; here its steps and its memory are bounded too.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

from eligo.errors import InputError
from eligo.untrusted import reading

_LONGEST_TEMPLATE, _LONGEST_PROMPT = 200_000, 10_000_000  # characters
_MOST_STEPS = 2_000_000  # lines of Python that run; a long conversation takes thousands
_MOST_BYTES = 2**30
_RUN_BY_TEMPLATES = ("filters.py", "runtime.py", "sandbox.py", "tests.py", "utils.py")  # of jinja2
_LIMITS = Lock()  # they are the process's
_EXPECTED = "a chat template that transformers can render: correct it, or copy the folder again"


def render_chat(processor: Any, messages: Sequence[Any], **options: Any) -> str:
    """The prompt that the chat template of a processor or tokenizer makes of messages."""
    where = f"chat template of {_name(processor)}"
    found = processor.chat_template
    with reading(where, _EXPECTED):
        for template in found.values() if isinstance(found, dict) else [found]:
            _check_template(template)
    with reading(where, _EXPECTED), _bounded_memory(), _bounded_steps(where):
        text = processor.apply_chat_template(list(messages), tokenize=False, **options)
        if not isinstance(text, str) or len(text) > _LONGEST_PROMPT:
            raise ValueError(f"it made no text of at most {_LONGEST_PROMPT} characters")
    return text


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


def _name(processor: Any) -> str:
    tokenizer = getattr(processor, "tokenizer", processor)
    return str(getattr(tokenizer, "name_or_path", "") or type(processor).__name__)


@lru_cache
def _check_template(template: str) -> None:
    """Refuse what no time or memory limit catches: compiling it, or powers, which are one step."""
    import jinja2

    if len(template) > _LONGEST_TEMPLATE:
        raise ValueError(f"it has {len(template)} characters, more than {_LONGEST_TEMPLATE}")
    tokens = jinja2.Environment().lex(template)
    if any(kind == "operator" and value == "**" for _, kind, value in tokens):
        raise ValueError("it computes powers (**)")


@contextmanager
def _bounded_steps(where: str) -> Iterator[None]:
    """Count the lines that the template's program runs; an endless loop is an error."""
    import jinja2

    library = Path(jinja2.__file__).parent
    counted = {"<template>", *(str(library / name) for name in _RUN_BY_TEMPLATES)}
    left = _MOST_STEPS

    def step(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        nonlocal left
        if frame.f_code.co_filename not in counted:
            return None
        left -= 1
        if left < 0:
            raise InputError(f"{where}: takes more than {_MOST_STEPS} steps; expected {_EXPECTED}")
        return step

    before = sys.gettrace()
    if before is not None:  # a debugger, or a measure of coverage
        yield
        return
    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """On Linux: what would take gigabytes more than there are now is a MemoryError."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        yield
        return
    import resource

    with _LIMITS:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + _MOST_BYTES
        given = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *given]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
