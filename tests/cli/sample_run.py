"""Sample configs with fields of every kind, and commands that use them."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro
from pydantic import Field, model_validator

from eligo.config import Config
from eligo.errors import EligoError, InputError


class Merger(Config):
    """Folds tokens together."""

    ratio: float = Field(0.5, gt=0, le=1)
    """Share of the tokens that is kept."""
    kind: Literal["simple", "question"] = "simple"
    """How tokens are scored."""


class Scenes(Config):
    kind: Literal["scenes"] = "scenes"
    size: int = 3
    """Scenes to make."""


class Files(Config):
    kind: Literal["files"] = "files"
    path: Path
    """Where the files lie."""


class Stage(Config):
    layer: int
    budget: int = 10

    @model_validator(mode="after")
    def _budget_fits(self) -> Self:
        if self.budget > 100:
            raise ValueError(f"budget {self.budget} is above the supply of 100")
        return self


class Run(Config):
    """A run for tests."""

    task: str = "sample_run:Run"
    name: str
    """Folder of the run."""
    lr: float = 1e-3
    steps: int = 100
    amp: bool = True
    checked: bool | None = None
    limit: int | Literal["auto"] = "auto"
    layers: tuple[int, ...] = (1, 2)
    weights: dict[str, float] = Field(default_factory=lambda: {"kl": 1.0, "ce": 1.0})
    stages: tuple[Stage, ...] = (Stage(layer=1),)
    merger: Merger = Merger(ratio=0.9)
    second: Merger | None = None
    data: Annotated[Scenes | Files, Field(discriminator="kind")] = Scenes()
    out: Path | None = None

    def smoke(self) -> Self:
        return self.replace({"steps": 2, "merger.ratio": 0.1})


class Plain(Config):
    """No `smoke` method and no required field."""

    task: Literal["plain"] = "plain"
    size: int = 3


calls: list[tuple[Config, dict]] = []


def take(config: Config, *, resume: bool = False, json: bool = False) -> None:
    """Take a config and remember it.

    Args:
        resume: Go on where it stopped.
    """
    calls.append((config, {"resume": resume, "json": json}))


def take_plain(config: Annotated[Plain, "small"]) -> None:
    """Take a plain config, the shipped one if none is given."""
    calls.append((config, {}))


def look(
    where: Annotated[Path | None, tyro.conf.Positional] = None,
    *,
    out: Path,
    times: int = 3,
    words: tuple[int, ...] = (),
    model: str | None = None,
    json: bool = False,
) -> None:
    """Look at what is given.

    Args:
        where: A folder.
        out: The folder to write to.
        times: How often.
        words: Which of them; a long text that goes
            on behind an indented line.
        model: Folder of a model; by default none.
        json: Print one JSON document.
    """
    calls.append((Plain(), {"where": where, "out": out, "times": times, "words": words}))


def fail() -> None:
    """Fail."""
    raise EligoError("the disk is full")


def refuse() -> None:
    """Refuse."""
    raise InputError("picture.png: got 3 pixels, expected 32")


def interrupted() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def terminated() -> None:
    """Be ended by SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def swallowed() -> None:
    """Be interrupted while a library catches the interrupt and raises another error."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)  # the signal ends it
    except BaseException:
        raise EligoError("a library is missing") from None


def broken() -> None:
    """Have a bug."""
    raise ZeroDivisionError("a bug of ours")
