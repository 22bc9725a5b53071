"""Captioned images: a Karpathy JSON file, and JSON lines of dense captions.

As usual in the literature, `restval` counts as training data and only the first five captions of an
image are used. Dense captions come in two forms: `{"image_id", "text", ...}` (image_id is the
file's imgid, cocoid or filename), or one line with `text` per image, in the order of the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, Words, check_row, read_json_lines
from eligo.io.reading import read_json
from eligo.patches.config import KarpathyDataConfig

Split = Literal["train", "val", "test"]
_MAX_CAPTIONS = 5
_NAMES = ("imgid", "cocoid", "filename")


class TextRow(JsonRow):
    """A line with a text, and optionally the id of the text or of its image."""

    text: Words
    id: Any = None
    image_id: Any = None


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


def read_captions(config: KarpathyDataConfig, split: Split) -> list[CaptionedImage]:
    """Return the images of a split, with dense captions if the config names a file of them."""
    by_split = _read_karpathy(config.captions, config.images)
    if split not in by_split:
        names = ", ".join(sorted(by_split)) or "none"
        raise InputError(f"{config.captions}: no image of split {split!r}, found {names}")
    images = by_split[split]
    if config.dense is None:
        return images
    if "{split}" in str(config.dense):
        return _with_dense(images, images, Path(str(config.dense).replace("{split}", split)))
    all_images = sorted((i for part in by_split.values() for i in part), key=lambda i: i.index)
    return _with_dense(images, all_images, config.dense)


def _read_karpathy(path: Path, folder: Path) -> dict[str, list[CaptionedImage]]:
    by_split: dict[str, list[CaptionedImage]] = {}
    for index, row in enumerate(check_row(_KarpathyFile, read_json(path), path).images):
        captions = tuple(sentence.raw.strip() for sentence in row.sentences[:_MAX_CAPTIONS])
        if not captions or not all(captions):
            raise InputError(f"{path}: images[{index}]: {row.filename} has no or an empty caption")
        names = tuple((n, getattr(row, n)) for n in _NAMES if n in row.model_fields_set)
        image = CaptionedImage(index, folder / row.filepath / row.filename, captions, names)
        by_split.setdefault("train" if row.split == "restval" else row.split, []).append(image)
    return by_split


def read_dense_captions(path: Path) -> dict[str, str]:
    """Return the dense captions of a file by `image_id`; every line must have one."""
    texts = {}
    for number, row in read_json_lines(path, TextRow, unique="image_id"):
        if row.image_id is None:
            raise InputError(f"{path}:{number}: image_id: missing; expected one per image")
        texts[str(row.image_id)] = row.text.strip()
    return texts


def _with_dense(
    images: Sequence[CaptionedImage], all_images: Sequence[CaptionedImage], path: Path
) -> list[CaptionedImage]:
    rows = [row for _, row in read_json_lines(path, TextRow)]
    if not rows or any(row.image_id is not None for row in rows):
        return _by_name(images, read_dense_captions(path), path)
    if len(rows) != len(all_images):
        raise InputError(
            f"{path}: got {len(rows)} lines without image_id for {len(all_images)} images; "
            "expected as many, in the order of the images, or an image_id in every line"
        )
    texts = {image.index: row.text.strip() for image, row in zip(all_images, rows, strict=True)}
    return [replace(image, dense=texts[image.index]) for image in images]


def _by_name(
    images: Sequence[CaptionedImage], texts: dict[str, str], path: Path
) -> list[CaptionedImage]:
    missing: dict[str, list[str]] = {}
    for name in _NAMES:
        keys = [str(dict(image.names).get(name)) for image in images]
        missing[name] = [key for key in keys if key not in texts]
        if not missing[name]:
            pairs = zip(images, keys, strict=True)
            return [replace(image, dense=texts[key]) for image, key in pairs]
    name = min(missing, key=lambda name: len(missing[name]))
    raise InputError(
        f"{path}: no dense caption for {len(missing[name])} of {len(images)} images, the first of "
        f"them with {name} {missing[name][0]}; expected a line for every image"
    )
