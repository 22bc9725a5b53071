"""The keys of a config as flags: a type that tyro parses into only what the user gave.

Tyro could parse a pydantic model itself, but would build and validate it before the YAML is
under it, and would not tell a given value from a default. So it is shown a mirror of the model:
nested dictionaries with every key optional, whose help and defaults are those of the config.
"""

import enum
import inspect
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from eligo.config import Config
from eligo.config.bounds import Bounds
from eligo.config.layers import default_of
from eligo.config.problems import configs_in
from eligo.config.yaml import dump_yaml, parse_value

Count = Annotated[int, Bounds(1)]
"""A number of things, at least one."""
Index = Annotated[int, Bounds(0)]
"""A whole number from 0."""
Positive = Annotated[float, Bounds(0, above=True)]
Share = Annotated[float, Bounds(0, 1, above=True)]
"""A part of something: above 0, at most 1."""
Side = Annotated[int, Bounds(32)]
"""Pixels a side that a network needs at least."""
_SCALARS = (bool, int, float, str, Path, type(None))
_FLAT = (list, tuple, set, frozenset)
_AS_YAML = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=lambda words: parse_value(words[0]),
    is_instance=lambda _: True,
    str_from_instance=lambda value: [str(value)],
)


def flags_of(configs: list[Any], tree: Any, without: tuple[str, ...] = ()) -> Any:
    """The optional flags of a config (or of all members of a union) that `tree` fills so far."""
    tree = tree if isinstance(tree, Mapping) else {}
    fields: dict[str, list[FieldInfo]] = {}
    for config in configs:
        for name, field in config.model_fields.items():
            fields.setdefault(name, []).append(field)
    hints = {
        name: _flag(same, tree.get(name, default_of(same[0])))
        for name, same in fields.items()
        if name not in without and same[0].json_schema_extra != {"flag": False}
    }
    # The class is made here because its keys are known only now.
    return TypedDict("Flags", hints, total=False)  # pyright: ignore[reportArgumentType]


def _flag(fields: list[FieldInfo], value: Any) -> Any:
    """One flag; several fields where members of a union share a name."""
    annotation = Union[*(field.annotation for field in fields)]
    description = " ".join((fields[0].description or "").split())
    inner = _nested(annotation)
    if inner:
        value = value.model_dump() if isinstance(value, Config) else value
        about = tyro.conf.arg(help=description or inspect.cleandoc(inner[0].__doc__ or ""))
        return Annotated[flags_of(inner, value), about]
    required = value is None and fields[0].is_required()
    hint = "(required)" if required else f"(default: {_shown(value)})"
    about = tyro.conf.arg(help=description, help_behavior_hint=hint)
    if _is_plain(annotation):
        return Annotated[annotation, about]
    return Annotated[Any, about, _AS_YAML]


def _nested(annotation: Any) -> list[Any]:
    """The configs that a field holds directly, or else nothing."""
    members = [part for part in _members(annotation) if part is not type(None)]
    return configs_in(annotation) if all(map(_is_config, members)) else []


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _is_plain(annotation: Any) -> bool:
    """Whether it reads well as words on a command line: scalars and flat lists of them."""
    for part in _members(annotation):
        origin = get_origin(part)
        is_enum = isinstance(part, type) and issubclass(part, enum.Enum)
        if origin in _FLAT:
            items = [item for item in get_args(part) if item is not Ellipsis]
            if any(get_origin(inner) in _FLAT or not _is_plain(inner) for inner in items):
                return False
        elif not (part in _SCALARS or origin is Literal or is_enum):
            return False
    return True


def _shown(value: Any) -> str:
    """A default as the user would write it."""
    plain = to_jsonable_python(value)
    if isinstance(plain, float) and len(str(plain)) > 10:
        return f"{plain:.4g}"
    if isinstance(plain, list) and not any(isinstance(item, dict | list) for item in plain):
        return " ".join(map(str, plain)) or "none"
    return dump_yaml(plain, flow=True) if isinstance(plain, dict | list) else str(plain)


def check_bounds(hints: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse numbers outside the `Bounds` in their types, and floats that are not finite."""
    for name, hint in hints.items():
        value, bounds = given.get(name), _bounds_in(hint)
        if is_dataclass(value) and not isinstance(value, type):  # a group of flags
            check_bounds(get_type_hints(type(value), include_extras=True), vars(value))
        named = next((m.name for m in _metadata(hint) if getattr(m, "name", None)), name)
        for one in value if isinstance(value, tuple | list) else [value]:
            if isinstance(one, int | float) and not isinstance(one, bool):
                bounds.check(f"--{named}", one)


def _bounds_in(hint: Any) -> Bounds:
    """Of a number, of a number or nothing, of a list of numbers."""
    for found in _metadata(hint):
        if isinstance(found, Bounds):
            return found
    inner = (_bounds_in(part) for part in get_args(hint) if part is not Ellipsis)
    return next((found for found in inner if found != Bounds()), Bounds())


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()
