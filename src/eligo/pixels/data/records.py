"""What a data set lists: ids, files and words, read and checked before any picture is opened."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eligo.config.nearest import did_you_mean
from eligo.errors import InputError
from eligo.io.reading import json_lines, numbered_lines
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


def class_names(config: FilesDataConfig) -> tuple[str, ...]:
    """The classes of a data set, in order."""
    if config.classes is not None:
        return read_classes(config.classes)
    return SUN_37 if isinstance(config, SunDataConfig) else NYU_40


def read_records(
    config: FilesDataConfig, split: Split, *, words: tuple[Kind, ...] = ()
) -> list[Record]:
    """The images of a split; if `words` are wanted, every image must have one of these kinds.

    Validation images are a seeded share of the training images, which lack them.
    """
    stored = "test" if split == "test" else "train"
    if isinstance(config, JsonlDataConfig):
        source = config.train if stored == "train" else config.test
        if source is None:
            raise InputError("data.test: not given; name the JSON lines of the test images")
        records = list(_read_jsonl(source))
    else:
        source = config.root / f"{stored}.txt"
        folder = "labels" if isinstance(config, SunDataConfig) else "Label"
        records = list(_read_rooms(config, source, folder))
    if not records:
        raise InputError(f"{source}: lists no image")
    _refuse_twice(source, records)
    if words:
        records = _with_words(config, source, records, words)
    if stored == "test":
        return records
    return _share(config, source, records, split)


def _share(config: FilesConfig, source: Path, records: list[Record], split: Split) -> list[Record]:
    """The training or the validation part; by sorted id, whatever the order of the file."""
    ordered = sorted(records, key=lambda record: record.id)
    count = max(1, round(config.validation_share * len(ordered)))
    if count >= len(ordered):
        raise InputError(
            f"{source}: got {len(ordered)} images, too few to keep {config.validation_share:.0%} "
            "of them for validation"
        )
    order = np.random.default_rng(mix(config.validation_seed)).permutation(len(ordered))
    chosen = {ordered[index].id for index in order[:count]}
    return [record for record in records if (record.id in chosen) == (split == "validation")]


def _read_rooms(config: RoomsDataConfig, source: Path, folder: str) -> Iterator[Record]:
    for number, line in numbered_lines(source):
        name = line.split()[0]
        path = Path(name)
        if path.parts[:1] != ("RGB",) or not path.suffix:
            raise InputError(
                f"{source}:{number}: got {name!r}, expected RGB/<id>.jpg as the first field"
            )
        own = path.relative_to("RGB").with_suffix("").as_posix()
        yield Record(
            own,
            config.root / name,
            config.root / "Depth" / f"{own}.png",
            config.root / folder / f"{own}.png",
        )


def _read_jsonl(source: Path) -> Iterator[Record]:
    for number, row in json_lines(source):
        known = ("id", "image", "depth", "label", "tags", "captions", "dense_caption")
        strange = [key for key in row if key not in known]
        if strange:
            hint = did_you_mean(strange[0], known)
            raise InputError(
                f"{source}:{number}: unknown field {strange[0]!r}{hint} (expected some of "
                f"{', '.join(known)})"
            )
        paths = {}
        for key in ("image", "depth", "label"):
            value = row.get(key)
            if not isinstance(value, str) and (value is not None or key == "image"):
                raise InputError(f"{source}:{number}: {key}: got {value!r}, expected a path")
            if value is not None:
                paths[key] = source.parent / value
        tags, captions = _said(source, number, row)
        yield Record(_id(source, number, row), **paths, tags=tags, captions=captions)


def _with_words(
    config: FilesConfig, source: Path, records: list[Record], kinds: tuple[Kind, ...]
) -> list[Record]:
    found: dict[str, tuple[Strings, Strings]] = {}
    if config.words is not None:
        for number, row in json_lines(config.words):
            own = _id(config.words, number, row)
            if own in found:
                raise InputError(
                    f"{config.words}:{number}: has {own!r} again; put all its words on one line"
                )
            found[own] = _said(config.words, number, row)
        records = [
            replace(record, tags=found[record.id][0], captions=found[record.id][1])
            if record.id in found
            else record
            for record in records
        ]
    lacking = [r for r in records if all(getattr(r, kind) is None for kind in kinds)]
    if lacking and not config.allow_missing_words:
        where = config.words or source
        named = lacking[0].id
        hint = "" if named in found else did_you_mean(named, list(found))
        raise InputError(
            f"{where}: has no {' or '.join(kinds)} for {len(lacking)} of {len(records)} images, "
            f"first {named!r}{hint}; ids must be the same; --data.allow_missing_words goes "
            "on without, --text.source none needs none"
        )
    if lacking:
        _log.warning(
            "%s: words for %d of %d images", source, len(records) - len(lacking), len(records)
        )
    return records


def _said(source: Path, number: int, row: dict[str, Any]) -> tuple[Strings, Strings]:
    """Tags and captions of a line; None where it has none."""
    said: list[Strings] = []
    for key in ("tags", "captions"):
        value = row.get(key)
        listed = value if isinstance(value, list) else [None]
        if value is not None and not all(isinstance(one, str) and one.strip() for one in listed):
            raise InputError(f"{source}:{number}: {key}: got {value!r}, expected a list of strings")
        said.append(None if value is None else tuple(value))
    return said[0], said[1]


def _id(source: Path, number: int, row: dict[str, Any]) -> str:
    if not isinstance(row.get("id"), str) or not row["id"]:
        raise InputError(f"{source}:{number}: id: got {row.get('id')!r}, expected a string")
    return row["id"]


def _refuse_twice(source: Path, records: Sequence[Record]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise InputError(f"{source}: lists {record.id!r} twice; no image may count twice")
        seen.add(record.id)
