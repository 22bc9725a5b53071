"""What a live explorer offers: tools, the controls that each has, and what they are asked.

A tool is a callable from a request to an `ExplorerRecord`; whoever builds it knows the models, nobody here
does. `server` serves tools, `request` reads and checks what the page sends.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import isfinite
from typing import Any

from PIL import Image

from eligo.errors import InputError
from eligo.explorer.record import ExplorerRecord

_THUMBNAIL = (160, 160)


class RefusedError(Exception):
    """A request that gets no record: a status of HTTP, and a message for whoever sent it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class LiveText:
    """The line to type into."""

    label: str
    placeholder: str = ""
    default: str = ""


@dataclass(frozen=True)
class LiveBudget:
    """The slider."""

    label: str
    min: int | float
    max: int | float
    step: int | float
    default: int | float
    unit: str = ""

    def __post_init__(self) -> None:
        numbers = (self.min, self.max, self.step, self.default)
        ordered = all(map(isfinite, numbers)) and self.min <= self.default <= self.max
        if not ordered or self.step <= 0:
            raise InputError(
                f"budget {self.label!r}: got min, max, step, default {numbers}, expected "
                "min <= default <= max and a step above 0"
            )


@dataclass(frozen=True)
class LiveImage:
    """A picture, and a name that only the same picture has: caches go by the name."""

    key: str
    picture: Image.Image = field(compare=False)


@dataclass(frozen=True, eq=False)
class LiveExample:
    """A picture to begin with, with its text and, perhaps, its depth."""

    id: str
    title: str
    picture: Image.Image
    text: str
    depth: Image.Image | None = None

    @property
    def image(self) -> LiveImage:
        """As a request carries it."""
        return LiveImage(f"example {self.id}", self.picture)


@dataclass(frozen=True, eq=False)
class LiveRequest:
    """What a tool is asked, checked against its controls."""

    text: str
    image: LiveImage | None = None
    """RGB; there, if the tool takes images."""
    depth: Image.Image | None = None
    """One channel, as large as the image; maybe there, if the tool takes depth."""
    budget: int | float | None = None
    """On the slider's scale; there, if the tool has one."""


@dataclass(frozen=True, eq=False)
class LiveTool:
    """One thing to try. `run` is called from one thread, never twice at a time."""

    name: str
    title: str
    text: LiveText
    run: Callable[[LiveRequest], ExplorerRecord]
    image: bool = True
    """Whether it wants a picture."""
    depth: bool = False
    """Whether it takes the picture's depth too."""
    budget: LiveBudget | None = None
    examples: Sequence[LiveExample] = ()


def describe(tools: Sequence[LiveTool]) -> dict[str, Any]:
    """What the page is told: every tool with its controls and thumbnails."""
    return {
        "tools": [
            {
                "name": tool.name,
                "title": tool.title,
                "text": vars(tool.text),
                "image": tool.image,
                "depth": tool.depth,
                "budget": None if tool.budget is None else vars(tool.budget),
                "examples": [
                    {
                        "id": example.id,
                        "title": example.title,
                        "thumbnail": _thumbnail(example.picture),
                        "text": example.text,
                    }
                    for example in tool.examples
                ],
            }
            for tool in tools
        ]
    }


def _thumbnail(picture: Image.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail(_THUMBNAIL)
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"
