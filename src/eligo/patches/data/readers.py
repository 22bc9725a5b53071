"""Captioned images: a Karpathy JSON file, and JSON lines of dense captions.

Dense captions come in two forms: `{"image_id", "text", ...}` (image_id is the file's imgid, cocoid
or filename), or one line with `text` per image, in the order of the images.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eligo.captions import NAMES, CaptionedImage, Split, read_karpathy
from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, Words, read_json_lines
from eligo.patches.config import KarpathyDataConfig


class TextRow(JsonRow):
    """A line with a text, and optionally the id of the text or of its image."""

    text: Words
    id: Any = None
    image_id: Any = None


def read_captions(config: KarpathyDataConfig, split: Split) -> list[CaptionedImage]:
    """Return the images of a split, with dense captions if the config names a file of them."""
    by_split = read_karpathy(config.captions, config.images)
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
    for name in NAMES:
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
