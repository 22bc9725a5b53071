"""What the explorer shows: a query, pictures, and the selections made over them.

A record knows no family. Whatever a selector chose among is one of two things: the cells of a
grid laid over a picture (vision tokens, patches, places of an attention map), or items with a text
and perhaps a picture each (examples for a prompt, words, search results). What it chose is a
`Selection`. So any selector can be shown by saying over what it chose.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from PIL import Image

from eligo.errors import InputError
from eligo.selection import Selection


@dataclass(frozen=True)
class Grid:
    """Candidates are the cells of a picture, in raster order."""

    picture: str
    """Which of the record's pictures it is laid over."""
    rows: int
    columns: int

    def __len__(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Item:
    """A candidate that stands by itself."""

    text: str
    picture: str | None = None
    """Which of the record's pictures shows it."""
    note: str = ""


@dataclass(frozen=True)
class Stage:
    """One choice: over what, and which.

    `selection` has either no batch axis, or one, whose rows `rows` names (words, tags): the page
    then shows one row at a time.
    """

    name: str
    selection: Selection
    over: Grid | tuple[Item, ...]
    rows: tuple[str, ...] = ()
    layer: int | None = None
    """The language model's layer whose input was cut; 0: before it. None: not inside a model."""
    candidates: tuple[int, ...] | None = None
    """Which cells or items the selection's candidates are, if only some reached this stage."""
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """What somebody said to the query."""

    who: str
    text: str
    right: bool | None = None
    """None: nobody knows."""


@dataclass(frozen=True)
class Key:
    """A line of a picture's legend: a colour in it, and what that stands for."""

    colour: str
    """As `#rrggbb`."""
    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", self.colour):
            raise InputError(f"colour: got {self.colour!r:.60}, expected one like #3446c8")


@dataclass(frozen=True)
class ExplorerRecord:
    """One query and everything that was chosen for it."""

    title: str
    kind: str
    """The family of its selector, or any other word; records of a kind stand together."""
    query: str
    stages: tuple[Stage, ...]
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)
    """By name; the first one is the picture of the query."""
    answers: tuple[Answer, ...] = ()
    cost: Mapping[str, str] = field(default_factory=dict)
    """Lines of the cost block, as they are to be read."""
    note: str = ""
    legends: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)
    """Of pictures whose colours stand for something (classes), by the picture's name."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            _check(stage, self)
        for name in self.legends:
            if name not in self.pictures:
                raise InputError(
                    f"record {self.title!r}: got a legend of {name!r}, expected one of its "
                    f"pictures: {list(self.pictures)}"
                )


def _check(stage: Stage, record: ExplorerRecord) -> None:
    where = f"record {record.title!r}, stage {stage.name!r}"
    scores = stage.selection.scores
    if isinstance(stage.over, Grid):
        named = [stage.over.picture]
        if min(stage.over.rows, stage.over.columns) < 1:
            raise InputError(f"{where}: got {stage.over}, expected at least one row and column")
    else:
        named = [item.picture for item in stage.over if item.picture is not None]
    for name in named:
        if name not in record.pictures:
            raise InputError(f"{where}: no picture {name!r}; there are {list(record.pictures)}")
    if scores.ndim != 1 + bool(stage.rows) or (stage.rows and len(scores) != len(stage.rows)):
        raise InputError(
            f"{where}: got scores {tuple(scores.shape)} and {len(stage.rows)} names of rows; "
            "expected one row without names, or as many names as rows"
        )
    reached = range(len(stage.over)) if stage.candidates is None else stage.candidates
    if len(reached) != scores.shape[-1]:
        raise InputError(
            f"{where}: got {scores.shape[-1]} candidates, expected {len(reached)}, as many as "
            "there are cells or items (or as `candidates` names)"
        )
    if stage.candidates is not None:
        wrong = [place for place in stage.candidates if not 0 <= place < len(stage.over)]
        if wrong or len(set(stage.candidates)) != len(stage.candidates):
            raise InputError(
                f"{where}: candidates must be different places in 0..{len(stage.over) - 1}, got "
                f"{wrong or 'repeated ones'}"
            )
