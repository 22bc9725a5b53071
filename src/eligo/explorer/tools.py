"""Live tools: their controls and requests.

A tool maps a request to an `ExplorerRecord`. `server` serves tools, `request` checks what the page
sends.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import isfinite
from typing import Any

from PIL import Image

from eligo.errors import InputError
from eligo.explorer.record import ExplorerRecord

_THUMBNAIL = (160, 160)


class RefusedError(Exception):
    """A refused request: an HTTP status and a message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class LiveText:
    """The text input."""

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
class LiveChoice:
    """A menu; the first option is the default."""

    name: str
    label: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class LiveImage:
    """An image and a key for caches; equal keys mean equal images."""

    key: str
    picture: Image.Image = field(compare=False)


@dataclass(frozen=True, eq=False)
class LiveExample:
    """An example image with its text and optional depth."""

    id: str
    title: str
    picture: Image.Image
    text: str
    depth: Image.Image | None = None

    @property
    def image(self) -> LiveImage:
        """The image of a request for this example."""
        return LiveImage(f"example {self.id}", self.picture)


@dataclass(frozen=True, eq=False)
class LiveRequest:
    """The checked input of a tool."""

    text: str
    image: LiveImage | None = None
    """RGB; set if the tool takes images."""
    depth: Image.Image | None = None
    """One channel, of the size of the image; optional, if the tool takes depth."""
    budget: int | float | None = None
    """The slider's value; set if the tool has one."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """An option of every menu, by name."""


@dataclass(frozen=True, eq=False)
class LiveTool:
    """A live tool. `run` is only called from one thread."""

    name: str
    title: str
    text: LiveText
    run: Callable[[LiveRequest], ExplorerRecord]
    image: bool = True
    """Whether it takes an image."""
    depth: bool = False
    """Whether it takes depth."""
    budget: LiveBudget | None = None
    choices: Sequence[LiveChoice] = ()
    examples: Sequence[LiveExample] = ()
    about: str = ""
    """A remark above its controls."""


def describe(tools: Sequence[LiveTool]) -> dict[str, Any]:
    """Describe the tools, with controls and thumbnails, for the page."""
    return {
        "tools": [
            {
                "name": tool.name,
                "title": tool.title,
                "about": tool.about,
                "text": vars(tool.text),
                "image": tool.image,
                "depth": tool.depth,
                "budget": None if tool.budget is None else vars(tool.budget),
                "choices": [vars(choice) for choice in tool.choices],
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
