"""The questions of the study on photos, as text: pool, taught and tested queries of three sets.

    daquar    questions on rooms, alone
    things    the same, after the names of the things that the frame's labels show
    captions  questions made from Flickr8k's captions, after a caption of the photo

Examples and taught queries come from alternating blocks of consecutive frames (or photos) of the
training split: neighbouring frames show the same room. Tested queries are of the test split.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from eligo.captions import read_karpathy
from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, TextOrNumber, read_json_lines
from eligo.shots.data.items import Item

Set = Literal["daquar", "things", "captions"]
_BLOCK = 20  # frames or photos
_LEAST = 0.005  # share of the pixels of a thing that is named


class Questions(NamedTuple):
    """The items of one set; a group is a frame or photo."""

    examples: list[Item]
    taught: list[Item]
    tested: list[Item]


class _Row(JsonRow, extra="allow"):
    id: TextOrNumber
    image: TextOrNumber
    question: str
    answer: str
    split: Literal["train", "val", "test"]


def read_questions(
    name: Set,
    path: Path,
    sizes: tuple[int, int, int],
    *,
    labels: Path | None = None,
    captions: Path | None = None,
    things: Sequence[str] = (),
    unnamed: Sequence[str] = (),
) -> Questions:
    """Read JSON lines with id, image, question, answer and split; `sizes` are at most."""
    rows = [row for _, row in read_json_lines(path, _Row, unique="id")]
    before: dict[str, str] = {}
    if name == "things":
        if labels is None:
            raise InputError("things: needs --labels, the folder of NYUv2's labels")
        frames = sorted({row.image for row in rows})
        before = {frame: _named(labels / f"{frame}.png", things, unnamed) for frame in frames}
    elif name == "captions":
        if captions is None:
            raise InputError("captions: needs --captions, a file in Karpathy's form")
        images = [image for part in read_karpathy(captions, Path()).values() for image in part]
        # Names without their ending: photos may have been converted.
        before = {image.path.stem: image.captions[0] for image in images}
        rows = [row for row in rows if Path(row.image).stem in before]
    train = sorted({row.image for row in rows if row.split == "train"})
    block = {image: number // _BLOCK for number, image in enumerate(train)}
    parts: tuple[list[Item], list[Item], list[Item]] = ([], [], [])
    for row in rows:
        if row.split == "val":
            continue
        lead = before.get(Path(row.image).stem if name == "captions" else row.image, "")
        item = Item(row.id, f"{lead} {row.question}".strip(), (row.answer,), None, row.image)
        part = 2 if row.split == "test" else block[row.image] % 2
        parts[part].append(item)
    for part, size in zip(parts, sizes, strict=True):
        if not part:
            raise InputError(f"{path}: has too few questions of the splits train and test")
        random.Random(0).shuffle(part)
        del part[size:]
    return Questions(*parts)


def _named(path: Path, things: Sequence[str], unnamed: Sequence[str]) -> str:
    """Return a sentence that names the things of a labelled frame, the largest first."""
    with Image.open(path) as image:
        counts = np.bincount(np.asarray(image).ravel(), minlength=256)
    total = counts.sum()
    order = np.argsort(-counts, kind="stable")
    shown = [
        things[number - 1]
        for number in order.tolist()
        if 0 < number <= len(things) and counts[number] >= _LEAST * total
    ]
    shown = [thing for thing in shown if thing not in unnamed]
    return f"The room has: {', '.join(shown)}." if shown else ""
