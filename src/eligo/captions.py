"""Captioned images in Karpathy's form: one JSON file with filenames, splits and sentences.

As usual in the literature, `restval` counts as training data and only the first five captions of an
image are used.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, check_row
from eligo.io.reading import read_json

Split = Literal["train", "val", "test"]
NAMES = ("imgid", "cocoid", "filename")
"""Keys that identify an image in a Karpathy file."""
_MAX_CAPTIONS = 5
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)


class _Sentence(JsonRow):
    raw: str


class _KarpathyImage(JsonRow):
    split: Literal["train", "restval", "val", "test"]
    filename: str
    sentences: list[_Sentence]
    filepath: str = ""
    imgid: Any = None
    cocoid: Any = None


class _KarpathyFile(JsonRow):
    images: list[_KarpathyImage]


@dataclass(frozen=True)
class CaptionedImage:
    """One image of a Karpathy file."""

    index: int
    """Its position in the file."""
    path: Path
    captions: tuple[str, ...]
    names: tuple[tuple[str, int | str], ...]
    """imgid, cocoid and filename, those that the file has."""
    dense: str | None = None


def read_karpathy(path: Path, folder: Path) -> dict[Split, list[CaptionedImage]]:
    """Return the images of every split; paths are relative to `folder`."""
    by_split: dict[Split, list[CaptionedImage]] = {}
    for index, row in enumerate(check_row(_KarpathyFile, read_json(path), path).images):
        captions = tuple(sentence.raw.strip() for sentence in row.sentences[:_MAX_CAPTIONS])
        if not captions or not all(captions):
            raise InputError(f"{path}: images[{index}]: {row.filename} has no or an empty caption")
        names = tuple((n, getattr(row, n)) for n in NAMES if n in row.model_fields_set)
        image = CaptionedImage(index, folder / row.filepath / row.filename, captions, names)
        by_split.setdefault("train" if row.split == "restval" else row.split, []).append(image)
    return by_split


def names_sides(text: str) -> bool:
    """Return whether a text says left or right, and so may be wrong of the mirrored image.

    >>> names_sides("The dog on the Left"), names_sides("a bright light")
    (True, False)
    """
    return _SIDES.search(text) is not None
