"""Check the body of a request.

`read` checks the JSON, which is cheap; `CheckedRequest.open` decodes images, which takes time and
memory and is left to the worker thread.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any, NoReturn

from eligo.config.problems import did_you_mean
from eligo.explorer.tools import (
    LiveBudget,
    LiveExample,
    LiveImage,
    LiveRequest,
    LiveTool,
    RefusedError,
)
from eligo.explorer.uploads import open_depth, open_picture, orientation_in

MAX_BYTES = 8_000_000
"""Largest body: a photo of six megabytes in base64."""
MAX_TEXT = 1000
"""Longest text, in characters."""
_KEYS = ("tool", "image", "depth", "text", "budget", "choices")
_DATA_URL = re.compile(r"data:image/(\w{1,20});base64,")
_TYPES = ("png", "jpeg", "webp")


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """A request with checked fields and encoded images."""

    tool: LiveTool
    text: str
    budget: int | float | None
    choices: dict[str, str]
    image: LiveExample | bytes | None
    depth: bytes | None

    def open(self) -> LiveRequest:
        """Decode the images."""
        if self.image is None:
            return LiveRequest(self.text, budget=self.budget, choices=self.choices)
        depth, orientation = None, 1
        if isinstance(self.image, LiveExample):
            image, depth = self.image.image, self.image.depth
        else:
            image = LiveImage(sha256(self.image).hexdigest(), open_picture(self.image))
            orientation = orientation_in(self.image)
        if self.depth is not None:
            depth = open_depth(self.depth, image.picture.size, orientation)
        depth = depth if self.tool.depth else None
        return LiveRequest(self.text, image, depth, self.budget, self.choices)


def read(body: bytes, tools: Mapping[str, LiveTool]) -> CheckedRequest:
    """Check a body against the tool that it names."""
    fields = _fields(body)
    name = fields.get("tool")
    if not isinstance(name, str) or name not in tools:
        near = did_you_mean(name, list(tools)) if isinstance(name, str) else ""
        _refuse(f"tool: got {_short(name)}{near}, expected one of {', '.join(tools)}")
    tool = tools[name]
    return CheckedRequest(
        tool,
        _text(fields.get("text", tool.text.default)),
        _budget(fields.get("budget"), tool.budget),
        _choices(fields.get("choices", {}), tool),
        _image(fields.get("image"), tool),
        _depth(fields.get("depth"), tool),
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        _refuse("body: is nested too deeply, expected one flat JSON object")
    except ValueError as error:
        _refuse(f"body: is not JSON in UTF-8 ({error})")
    if not isinstance(fields, dict):
        _refuse(f"body: got {_short(fields)}, expected a JSON object with {', '.join(_KEYS)}")
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        near = did_you_mean(unknown[0], _KEYS)
        _refuse(f"body: got the key {_short(unknown[0])}{near}, expected {', '.join(_KEYS)}")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _text(given: object) -> str:
    if not isinstance(given, str):
        _refuse(f"text: got {_short(given)}, expected a string")
    if len(given) > MAX_TEXT:
        _refuse(f"text: got {len(given)} characters, expected at most {MAX_TEXT}; shorten it")
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        _refuse("text: holds half of a character (a lone surrogate), expected Unicode")
    return " ".join(given.split())


def _budget(given: object, budget: LiveBudget | None) -> int | float | None:
    if budget is None:
        if given is not None:
            _refuse(f"budget: got {_short(given)}, but this tool has none; leave it out")
        return None
    if given is None:
        return budget.default
    # In Python, true is an int, and 10**400 does not fit a float.
    if isinstance(given, bool) or not isinstance(given, int | float):
        _refuse(f"budget: got {_short(given)}, expected a number")
    if not budget.min <= given <= budget.max or not isfinite(given):
        _refuse(f"budget: got {_short(given)}, expected {budget.min} to {budget.max}")
    steps = (given - budget.min) / budget.step
    if abs(steps - round(steps)) > 1e-6:
        _refuse(f"budget: got {given}, expected steps of {budget.step} from {budget.min}")
    return given


def _choices(given: object, tool: LiveTool) -> dict[str, str]:
    """Return an option of every menu of the tool."""
    menus = {choice.name: choice.options for choice in tool.choices}
    if not isinstance(given, dict):
        _refuse(f"choices: got {_short(given)}, expected an object")
    for name, option in given.items():
        if name not in menus:
            known = ", ".join(menus) or "none"
            _refuse(f"choices: got the key {_short(name)}, expected one of: {known}")
        if not isinstance(option, str) or option not in menus[name]:
            _refuse(
                f"choices.{name}: got {_short(option)}, expected one of {', '.join(menus[name])}"
            )
    return {name: given.get(name, options[0]) for name, options in menus.items()}


def _image(given: object, tool: LiveTool) -> LiveExample | bytes | None:
    if not tool.image:
        if given is not None:
            _refuse(f"image: the tool {tool.name} takes none; leave it out")
        return None
    expected = '{"example": ID} or {"data": DATA_URL}'
    if not isinstance(given, dict) or len(given) != 1:
        _refuse(f"image: got {_short(given)}, expected {expected}")
    if "example" in given:
        for example in tool.examples:
            if example.id == given["example"]:
                return example
        known = ", ".join(example.id for example in tool.examples) or "none"
        _refuse(f"image.example: got {_short(given['example'])}, expected one of: {known}")
    if "data" not in given:
        _refuse(f"image: got the key {_short(next(iter(given)))}, expected {expected}")
    return _data("image.data", given["data"])


def _depth(given: object, tool: LiveTool) -> bytes | None:
    if given is None:
        return None
    if not tool.depth:
        _refuse(f"depth: the tool {tool.name} takes none; leave it out")
    if not isinstance(given, dict) or list(given) != ["data"]:
        _refuse(f'depth: got {_short(given)}, expected {{"data": DATA_URL}}')
    return _data("depth.data", given["data"])


def _data(name: str, given: object) -> bytes:
    head = _DATA_URL.match(given) if isinstance(given, str) else None
    if head is None or not isinstance(given, str):
        _refuse(f"{name}: got {_short(given)}, expected data:image/png;base64,...")
    if head[1] not in _TYPES:
        raise RefusedError(415, f"{name}: got image/{head[1]}, expected {', '.join(_TYPES)}")
    try:
        return b64decode(given[head.end() :], validate=True)
    except (Base64Error, ValueError) as error:
        _refuse(f"{name}: is not base64 ({error})")


def _refuse(message: str) -> NoReturn:
    raise RefusedError(400, message)


def _short(value: object) -> str:
    """Return a value as it was sent, shortened."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of thousands of digits
        return "a giant number"
    return text if len(text) <= 60 else f"{text[:57]}..."
