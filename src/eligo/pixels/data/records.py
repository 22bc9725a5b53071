"""The images that a data set lists: ids, files, tags and captions; no image is opened here."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from eligo.config.problems import did_you_mean
from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, TextOrNumber, Words, read_json_lines
from eligo.io.reading import numbered_lines
from eligo.pixels.config import (
    FilesConfig,
    FilesDataConfig,
    JsonlDataConfig,
    RoomsDataConfig,
    SunDataConfig,
)
from eligo.pixels.data.classes import NYU_40, SUN_37, read_classes
from eligo.train.rng import mix

Split = Literal["train", "validation", "test"]
Kind = Literal["tags", "captions"]
Strings = tuple[str, ...] | None
_log = logging.getLogger("eligo.pixels")


@dataclass(frozen=True)
class Record:
    """One image of a data set, by its files."""

    id: str
    image: Path
    depth: Path | None = None
    label: Path | None = None
    tags: Strings = None
    captions: Strings = None
    group: str | None = None
    """A sequence of similar images; all of it is for training, or all for validation."""
    depth_scale: float | None = None
    """Stored units of depth per metre; None: those of the config."""


_Texts = Annotated[tuple[Words, ...], Field(strict=False)]  # from a list


class WordsRow(JsonRow):
    """The words of an image."""

    id: Annotated[str, Field(min_length=1)]
    tags: _Texts | None = None
    captions: _Texts | None = None


class _ImageRow(WordsRow, extra="forbid"):
    image: str
    depth: str | None = None
    label: str | None = None
    group: TextOrNumber | None = None
    depth_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    dense_caption: object = None


def class_names(config: FilesDataConfig) -> tuple[str, ...]:
    """The classes of a data set, in order."""
    if config.classes is not None:
        return read_classes(config.classes)
    return SUN_37 if isinstance(config, SunDataConfig) else NYU_40


def read_records(
    config: FilesDataConfig, split: Split, *, words: tuple[Kind, ...] = ()
) -> list[Record]:
    """The images of a split; if `words` are given, every image must have one of these kinds.

    Validation images have a file of their own, or are a seeded share of the training file, and are
    then left out of training.
    """
    stored = "test" if split == "test" else "train"
    has_file = isinstance(config, JsonlDataConfig) and config.validation is not None
    if isinstance(config, JsonlDataConfig):
        source = config.train if stored == "train" else config.test
        if split == "validation" and config.validation is not None:
            source = config.validation
        if source is None:
            raise InputError("data.test: not given; name the JSON lines of the test images")
        records = list(_read_jsonl(source))
    else:
        source = config.root / f"{stored}.txt"
        folder = "labels" if isinstance(config, SunDataConfig) else "Label"
        records = list(_read_rooms(config, source, folder))
    if not records:
        raise InputError(f"{source}: lists no image")
    if words:
        records = _with_words(config, source, records, words)
    if stored == "test" or has_file:
        return records
    return _share(config, source, records, split)


def _share(config: FilesConfig, source: Path, records: list[Record], split: Split) -> list[Record]:
    """The training or validation part; it does not depend on the order of the file."""
    ordered = sorted(records, key=lambda record: record.id)
    groups: dict[tuple[str, str | int], list[str]] = {}
    for place, record in enumerate(ordered):
        name = ("block", place // config.validation_block)
        name = name if record.group is None else ("group", record.group)
        groups.setdefault(name, []).append(record.id)
    blocks = list(groups.values())
    count = max(1, round(config.validation_share * len(blocks)))
    if count >= len(blocks):
        parts = "" if len(blocks) == len(ordered) else f" in {len(blocks)} groups"
        raise InputError(
            f"{source}: got {len(ordered)} images{parts}, too few to keep "
            f"{config.validation_share:.0%} of them for validation; give more, smaller groups "
            "(data.validation_block), or data.validation"
        )
    order = np.random.default_rng(mix(config.validation_seed)).permutation(len(blocks))
    chosen = {name for index in order[:count] for name in blocks[index]}
    return [record for record in records if (record.id in chosen) == (split == "validation")]


def _read_rooms(config: RoomsDataConfig, source: Path, folder: str) -> Iterator[Record]:
    seen = set()
    for number, line in numbered_lines(source):
        name = line.split()[0]
        path = Path(name)
        if path.parts[:1] != ("RGB",) or not path.suffix:
            raise InputError(
                f"{source}:{number}: got {name!r}, expected RGB/<id>.jpg as the first field"
            )
        image_id = path.relative_to("RGB").with_suffix("").as_posix()
        if image_id in seen:
            raise InputError(
                f"{source}:{number}: lists {image_id!r} again, expected every image once"
            )
        seen.add(image_id)
        depth, label = (config.root / part / f"{image_id}.png" for part in ("Depth", folder))
        yield Record(image_id, config.root / name, depth, label)


def _read_jsonl(source: Path) -> Iterator[Record]:
    for _, row in read_json_lines(source, _ImageRow, unique="id"):
        files = (row.depth, row.label)
        depth, label = (None if file is None else source.parent / file for file in files)
        image = source.parent / row.image
        words = (row.tags, row.captions)
        yield Record(row.id, image, depth, label, *words, row.group, row.depth_scale)


def _with_words(
    config: FilesConfig, source: Path, records: list[Record], kinds: tuple[Kind, ...]
) -> list[Record]:
    rows: dict[str, WordsRow] = {}
    if config.words is not None:
        rows = {row.id: row for _, row in read_json_lines(config.words, WordsRow, unique="id")}
        records = [
            replace(record, tags=row.tags, captions=row.captions)
            if (row := rows.get(record.id))
            else record
            for record in records
        ]
    lacking = [r for r in records if all(getattr(r, kind) is None for kind in kinds)]
    if lacking and not config.allow_missing_words:
        where = config.words or source
        first = lacking[0].id
        hint = "" if first in rows else did_you_mean(first, list(rows))
        raise InputError(
            f"{where}: has no {' or '.join(kinds)} for {len(lacking)} of {len(records)} images, "
            f"first {first!r}{hint}; ids must match; continue without them with "
            "--data.allow_missing_words, or use no words with --text.source none"
        )
    if lacking:
        _log.warning(
            "%s: words for %d of %d images", source, len(records) - len(lacking), len(records)
        )
    return records
