"""The explorer's data: a query, pictures, and selections over them.

A record is independent of the family. Candidates are either the cells of a grid over a picture
(vision tokens, patches, an attention map) or items with a text and an optional picture (examples,
words, search results); the choice among them is a `Selection`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from PIL import Image

from eligo.errors import InputError
from eligo.selection import Selection


@dataclass(frozen=True)
class Grid:
    """Candidates that are the cells of a picture, in raster order."""

    picture: str
    """Name of the picture."""
    rows: int
    columns: int

    def __len__(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Item:
    """A candidate with a text of its own."""

    text: str
    picture: str | None = None
    """Name of its picture."""
    note: str = ""


@dataclass(frozen=True)
class Stage:
    """One selection and its candidates.

    `selection` has no batch axis, or one whose rows are named by `rows` (words, tags); the page
    then shows one row at a time.
    """

    name: str
    selection: Selection
    over: Grid | tuple[Item, ...]
    rows: tuple[str, ...] = ()
    layer: int | None = None
    """Layer of the language model whose input was pruned; 0: before it; None: not in a model."""
    candidates: tuple[int, ...] | None = None
    """Cells or items that are the candidates, if only some reached this stage."""
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer to the query."""

    who: str
    text: str
    right: bool | None = None
    """None: unknown."""


@dataclass(frozen=True)
class Key:
    """An entry of a picture's legend."""

    colour: str
    """As `#rrggbb`."""
    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", self.colour):
            raise InputError(f"colour: got {self.colour!r:.60}, expected one like #3446c8")


@dataclass(frozen=True)
class ExplorerRecord:
    """One query and the selections made for it."""

    title: str
    kind: str
    """The family, or any other word; the page groups records by kind."""
    query: str
    stages: tuple[Stage, ...]
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)
    """By name; the first is the picture of the query."""
    answers: tuple[Answer, ...] = ()
    cost: Mapping[str, str] = field(default_factory=dict)
    """Lines of the cost block."""
    note: str = ""
    legends: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)
    """Legends by the name of the picture."""

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
