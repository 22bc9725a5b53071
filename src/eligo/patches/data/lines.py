"""Texts of JSON lines with `text`. What is wrong is named by its line."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from eligo.errors import InputError
from eligo.io.reading import json_lines

JsonText = tuple[int, str | None, str]
"""Number of a line, id (if it has one) and text."""


def read_json_texts(path: Path, key: str) -> Iterator[JsonText]:
    """Every row of a file of JSON lines; its id is the field `key`."""
    for number, row in json_lines(path):
        name, text = row.get(key), row.get("text")
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{path}, line {number}, field text: got {text!r:.60}, expected words")
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
