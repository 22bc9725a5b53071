"""Texts of people's files: lines, or JSON lines with `text`. What is wrong is named by its line."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from eligo.errors import InputError

JsonText = tuple[int, str | None, str]
"""Number of a line, id (if it has one) and text."""


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, and their numbers.

    Only a newline ends a line: `str.splitlines` would also cut at U+2028 and the like, which JSON
    may hold inside a text. The mark that some editors put before the first line is no text.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected a text file") from None
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_json_texts(path: Path, key: str) -> Iterator[JsonText]:
    """Every row of a file of JSON lines; its id is the field `key`."""
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            name, text = row.get(key), row["text"]
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"{path}, line {number}: got {line[:60]!r}; expected a JSON object with field text"
            ) from error
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{path}, line {number}, field text: got {text!r}, expected words")
        yield number, None if name is None else str(name), text.strip()


def by_image(path: Path, rows: Iterable[JsonText]) -> dict[str, str]:
    """Texts by `image_id`: one for an image, and none without."""
    found = {}
    for number, name, text in rows:
        if name is None or name in found:
            why = "is missing" if name is None else f"{name!r} was there before"
            raise InputError(
                f"{path}, line {number}, field image_id: {why}; expected one per image"
            )
        found[name] = text
    return found
