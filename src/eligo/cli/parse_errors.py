"""Errors of the command-line parser as one line: what was got, and what was expected.

tyro prints a box of several lines and ends the program; this reads the box.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import TypeVar

from eligo.config.problems import nearest
from eligo.errors import InputError

T = TypeVar("T")
_WIDE = "10000"  # columns: nothing is wrapped
_COLOURS, _DRAWING = re.compile(r"\x1b\[[0-9;]*m"), re.compile("[│╭╮╰╯]")
_KINDS = {
    "INT": "a whole number", "FLOAT": "a number", "STR": "a text", "PATH": "a path",
    "BOOL": "true or false", "NONE": "none",
}  # fmt: skip


def raise_as_line(parse: Callable[[], T], args: Sequence[str], prog: str) -> T:
    """Return what `parse` returns; raise its error as one line.

    >>> raise_as_line(lambda: 1, [], "eligo")
    1
    """
    try:
        with redirect_stderr(StringIO()):
            return parse()
    except SystemExit as end:
        if not end.code:  # the help
            raise
    raise InputError(f"{_line(_sections(_box(parse)), args)} ({prog} --help lists the flags)")


def _box(parse: Callable[[], object]) -> str:
    before, text = os.environ.get("COLUMNS"), StringIO()
    os.environ["COLUMNS"] = _WIDE
    try:
        with redirect_stderr(text), suppress(SystemExit):
            parse()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return text.getvalue()


def _sections(box: str) -> list[list[str]]:
    """Return the lines of a box, with their indentation, divided at its rules.

    Terminals get colours, and some no lines of a box but spaces and dashes.
    """
    sections: list[list[str]] = [[]]
    for row in _DRAWING.sub(" ", _COLOURS.sub("", box)).splitlines()[1:]:
        line = row[2:].rstrip()
        if line and set(line) <= {"─", "-"}:
            sections.append([])
        elif line:
            sections[-1].append(line)
    return [section for section in sections if section]


def _line(sections: list[list[str]], args: Sequence[str]) -> str:
    first = sections[0][0] if sections else "the arguments cannot be read"
    if first.startswith("Missing from"):
        return _missing(sections)
    if found := re.match(r"Error parsing (\S+): (.*)", first):
        flag, why = found.groups()
        kinds = dict.fromkeys(re.findall(r"[A-Z]+", sections[1][1] if len(sections) > 1 else ""))
        if not kinds or kinds.keys() - _KINDS.keys():
            return f"{flag}: {why}"
        if "FLOAT" in kinds:
            kinds.pop("INT", None)
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        return f"{flag}: got {_given(flag, args)}, expected {expected}"
    if found := re.match(r"invalid choice (.+) for argument '(.+)'\. Expected .*\((.*)\)", first):
        choices = found[3].replace("'", "").rstrip(",")
        return f"{found[2]}: got {found[1]}, expected one of {choices}"
    if found := re.match(r"Missing value for argument '(.+)'\.", first):
        return f"{found[1]}: got no value, expected one"
    return first.rstrip(".")


def _missing(sections: list[list[str]]) -> str:
    """Return which flags are missing, and which is unknown, perhaps one of them misspelled."""
    names = [line.strip() for line in sections[0][1:] if re.match(r" {4}\S", line)]
    unknown = [
        line.strip()
        for section in sections[1:]
        if section[0].startswith("Unrecognized")
        for line in section[1:]
        if line.strip().startswith("-")
    ]
    text = f"missing: {', '.join(names)}"
    if not unknown:
        return text
    match = nearest(unknown[0], [name.partition(" ")[0] for name in names])
    return f"unknown flag {unknown[0]:.80}" + (f"; did you mean {match}?" if match else f"; {text}")


def _given(flag: str, args: Sequence[str]) -> str:
    """Return the words that were given for a flag."""
    words: list[str] = []
    for number, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == flag.replace("-", "_"):
            words = [value] if equals else []
            for other in args[number + 1 :]:
                if equals or other.startswith("--"):
                    break
                words.append(other)
    return repr(" ".join(words))[:80] if words else "nothing"
