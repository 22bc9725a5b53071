"""Captioned images as people have them: a Karpathy JSON file and JSON lines of dense captions.

`restval` counts as training data and only the first five captions of an image count, as everywhere
in the literature. Dense captions come in two forms: `{"image_id", "text", ...}` (image_id is the
file's imgid, cocoid or filename), or lines with `text` alone (and `model_id`, `metadata`) in the
order of the images, if there are as many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from eligo.errors import InputError
from eligo.io.reading import read_json
from eligo.patches.config import KarpathyDataConfig
from eligo.patches.data.lines import by_image, read_json_texts

Split = Literal["train", "val", "test"]
_SPLIT_OF = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_MOST = 5  # captions of an image; COCO has a few more here and there, which nobody counts
_NAMES = ("imgid", "cocoid", "filename")


@dataclass(frozen=True)
class CaptionedImage:
    """One image of a Karpathy file."""

    index: int
    """Its place in the file."""
    path: Path
    captions: tuple[str, ...]
    names: tuple[tuple[str, int | str], ...]
    """imgid, cocoid and filename, as far as the file gives them."""
    dense: str | None = None


def read_captions(config: KarpathyDataConfig, split: Split) -> list[CaptionedImage]:
    """The images of one split, with dense captions where the config names a file of them."""
    every = _read_karpathy(config.captions, config.images)
    chosen = [image for of, image in every if of == split]
    if not chosen:
        found = sorted({of for of, _ in every})
        raise InputError(
            f"{config.captions}: no image of split {split!r}, found {', '.join(found) or 'none'}"
        )
    if config.dense is None:
        return chosen
    if "{split}" in str(config.dense):
        path = Path(str(config.dense).replace("{split}", split))
        return _with_dense(chosen, chosen, path)
    return _with_dense(chosen, [image for _, image in every], config.dense)


def _read_karpathy(path: Path, folder: Path) -> list[tuple[str, CaptionedImage]]:
    document = read_json(path)
    entries = document.get("images") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InputError(
            f'{path}: expected a Karpathy file, {{"images": [...]}}, as dataset_flickr30k.json'
        )
    images = []
    for index, entry in enumerate(entries):
        where = f"{path}: images[{index}]"
        try:
            split, filename = _SPLIT_OF[entry["split"]], entry["filename"]
            captions = tuple(sentence["raw"].strip() for sentence in entry["sentences"][:_MOST])
            file = folder / entry.get("filepath", "") / filename
        except (KeyError, TypeError, AttributeError) as error:
            given = ", ".join(entry) if isinstance(entry, dict) else repr(entry)[:60]
            raise InputError(
                f"{where}: got {given} with {error}; expected filename, sentences with raw, and "
                f"split, one of {', '.join(_SPLIT_OF)}"
            ) from None
        if not captions or not all(captions):
            raise InputError(f"{where}: {filename} has no or an empty caption")
        names = tuple((name, entry[name]) for name in _NAMES if name in entry)
        images.append((split, CaptionedImage(index, file, captions, names)))
    return images


def _with_dense(
    chosen: Sequence[CaptionedImage], every: Sequence[CaptionedImage], path: Path
) -> list[CaptionedImage]:
    rows = list(read_json_texts(path, "image_id"))
    if not rows or any(name is not None for _, name, _ in rows):
        return _by_name(chosen, by_image(path, rows), path)
    if len(rows) != len(every):
        raise InputError(
            f"{path}: got {len(rows)} lines without image_id for {len(every)} images; expected "
            "as many, in the order of the images, or an image_id in every line"
        )
    texts = {image.index: text for image, (_, _, text) in zip(every, rows, strict=True)}
    return [replace(image, dense=texts[image.index]) for image in chosen]


def _by_name(
    chosen: Sequence[CaptionedImage], texts: dict[str, str], path: Path
) -> list[CaptionedImage]:
    missing: dict[str, list[str]] = {}
    for name in _NAMES:
        keys = [str(dict(image.names).get(name)) for image in chosen]
        absent = [key for key in keys if key not in texts]
        if not absent:
            return [
                replace(image, dense=texts[key]) for image, key in zip(chosen, keys, strict=True)
            ]
        missing[name] = absent
    name = min(missing, key=lambda name: len(missing[name]))
    raise InputError(
        f"{path}: no dense caption for {len(missing[name])} of {len(chosen)} images, the first of "
        f"them with {name} {missing[name][0]}; expected a line for every image"
    )
