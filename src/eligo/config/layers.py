"""Layers of a config (files and flags), merged as plain trees with the file and line of each key.

The config class matters in two cases only: a mapping that changes part of a config is merged into
that config's default, and when a layer picks another member of a union (`kind: files`), the keys
that lower layers gave for the previous member are dropped.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eligo.config.problems import configs_in, union_members
from eligo.config.yaml import KeyPath
from eligo.errors import ConfigError

_UNUSABLE = re.compile("[\0\ud800-\udfff]")

FLAG = "--"
"""The origin of a key that was given on the command line."""


@dataclass(frozen=True)
class Layer:
    """A tree, and for each key the rank of its layer and its file and line.

    Ranks count from 0, the lowest; `height` is the number of ranks. `below` is the layer under this
    one: its values must be valid too, even where they are replaced.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, tuple[int, str]] = field(default_factory=dict)
    height: int = 1
    below: "Layer | None" = None

    def over(self, base: "Layer") -> "Layer":
        """This layer merged over another one, key by key."""
        replaced = set(_leaves(self.tree))
        kept = {
            path: origin
            for path, origin in base.origins.items()
            if not any(path[:end] in replaced for end in range(1, len(path)))
        }
        lifted = {path: (rank + base.height, at) for path, (rank, at) in self.origins.items()}
        merged = _merged(base.tree, self.tree)
        return Layer(merged, kept | lifted, base.height + self.height, base)

    def where(self, path: KeyPath) -> str:
        """Return the start of a message about a key: `file.yaml:3: a.b: `, or `--a.b: `."""
        # A key that is in no file gets the line of the closest section around it.
        around = (self.origins.get(path[:end], (0, ""))[1] for end in range(len(path), -1, -1))
        origin = next(filter(None, around), "")
        dotted = ".".join(path)
        if origin == FLAG:
            return f"--{dotted}: "
        return "".join(f"{part}: " for part in (origin, dotted) if part)


def plain_layer(tree: Mapping[str, Any], origin: str = "") -> Layer:
    """A layer whose keys all come from one place."""
    return Layer(dict(tree), dict.fromkeys(_leaves(tree), (0, origin)))


def override(layer: Layer, overrides: Mapping[str, Any]) -> Layer:
    """The layer with flags (dotted or nested keys) on top."""
    top = Layer()
    for key, value in overrides.items():
        for name in reversed(str(key).split(".")):
            value = {name: value}
        top = Layer(_merged(top.tree, value))
    return plain_layer(top.tree, FLAG).over(layer)


def completed(cls: type[BaseModel], layer: Layer) -> Layer:
    """The layer over the defaults of the configs that it changes in part."""
    layer = layer.over(plain_layer(_defaults(cls, layer.tree)))
    return Layer(_without_stale(cls, layer.tree, layer, ()), layer.origins, layer.height)


def unusable(value: Any) -> str | None:
    """Describe a value that no tensor, file name or tokenizer accepts; None for other values."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"got a whole number of {len(str(value))} digits, expected one of 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return f"got {value}, expected a finite number"
    if isinstance(value, str) and _UNUSABLE.search(value):
        return f"got {value!r:.80}, expected text without NUL and in whole Unicode characters"
    return None


def check_values(layer: Layer) -> None:
    """Raise a ConfigError for values that are `unusable`."""
    for path, value in _values(layer.tree, ()):
        if problem := unusable(value):
            raise ConfigError(layer.where(path) + problem)


def check_sections(cls: type[BaseModel], layer: Layer, path: KeyPath = ()) -> None:
    """Refuse a section that is not a mapping, even where another layer replaces it."""
    tree: Any = layer.tree
    for name in path:
        tree = tree[name]
    for name, info in cls.model_fields.items():
        inner, here = configs_in(info.annotation), (*path, name)
        members = {*union_members(info.annotation)}
        if name not in tree or not (inner and members <= {*inner, type(None)}):
            continue
        if isinstance(tree[name], Mapping):
            if len(inner) == 1:
                check_sections(inner[0], layer, here)
        elif tree[name] is not None or type(None) not in members:
            keys = ", ".join(dict.fromkeys(key for config in inner for key in config.model_fields))
            raise ConfigError(
                f"{layer.where(here)}got {tree[name]!r:.80}, expected a mapping with the keys "
                f"{keys}; correct the file"
            )


def _values(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if isinstance(key, str) and _UNUSABLE.search(key):
                yield path, key
            yield from _values(value, (*path, str(key)))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _values(value, (*path, str(index)))
    else:
        yield path, tree


def default_of(info: FieldInfo) -> Any:
    """Return a field's default; None if it has none, or computes it from other fields."""
    if info.is_required() or info.default_factory_takes_validated_data:
        return None
    return info.get_default(call_default_factory=True)


def _defaults(cls: type[BaseModel], tree: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {}
    for name, info in cls.model_fields.items():
        value, default = tree.get(name), default_of(info)
        inner = configs_in(info.annotation)
        if not isinstance(value, Mapping):
            continue
        if isinstance(default, BaseModel):
            defaults[name] = default.model_dump(round_trip=True, serialize_as_any=True)
        elif len(inner) == 1 and inner[0] is info.annotation:
            defaults[name] = _defaults(inner[0], value)
    return defaults


def _without_stale(
    cls: type[BaseModel], tree: Mapping[str, Any], layer: Layer, path: KeyPath
) -> dict[str, Any]:
    current = dict(tree)
    for name, info in cls.model_fields.items():
        value, members = tree.get(name), configs_in(info.annotation)
        if not (isinstance(value, Mapping) and members):
            continue
        here = (*path, name)
        if isinstance(info.discriminator, str):
            before = getattr(info.default, info.discriminator, None)
            chosen, value = _chosen(members, info.discriminator, value, layer, here, before)
        else:
            chosen = members[0] if members[0] is info.annotation else None
        current[name] = _without_stale(chosen, value, layer, here) if chosen else value
    return current


def _chosen(
    members: list[type[BaseModel]],
    tag: str,
    value: Mapping[str, Any],
    layer: Layer,
    path: KeyPath,
    default: object,
) -> tuple[type[BaseModel] | None, Mapping[str, Any]]:
    """Return the union member that the tag names, and the value without stale keys of others.

    `default`: the tag of the default; the defaults of another member are stale, too.
    """
    tagged = (m for m in members if value.get(tag) in get_args(m.model_fields[tag].annotation))
    chosen = next(tagged, None)
    if chosen is None:
        return None, value  # validation reports it
    since = _rank(layer, (*path, tag))
    others = {key for member in members for key in member.model_fields} - set(chosen.model_fields)
    ranks = {key: _rank(layer, (*path, key)) for key in value if key != tag}
    stale = {key for key in others & ranks.keys() if ranks[key] < since}
    if value[tag] != default:
        stale |= {key for key, rank in ranks.items() if rank == 0}  # written by no layer
    return chosen, {key: inner for key, inner in value.items() if key not in stale}


def _rank(layer: Layer, path: KeyPath) -> int:
    """The highest rank with which a key, or something under it, was written."""
    ranks = (rank for at, (rank, _) in layer.origins.items() if at[: len(path)] == path)
    return max(ranks, default=0)


def _merged(base: Any, top: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(top, Mapping)):
        return top
    return {**base, **{key: _merged(base.get(key), value) for key, value in top.items()}}


def _leaves(tree: Any, prefix: KeyPath = ()) -> list[KeyPath]:
    if not (isinstance(tree, Mapping) and tree):
        return [prefix] if prefix else []
    return [path for key, value in tree.items() for path in _leaves(value, (*prefix, str(key)))]
