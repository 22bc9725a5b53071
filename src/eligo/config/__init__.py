"""Typed configs: frozen pydantic models <-> YAML <-> command line.

A file, the files it extends and the flags are merged as plain trees, and the result is validated
once. An error names the file and line, or the flag, of the value.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from eligo.config.layers import (
    Layer,
    check_sections,
    check_values,
    completed,
    override,
    plain_layer,
)
from eligo.config.problems import describe, did_you_mean, nearest
from eligo.config.yaml import dump_yaml, read_yaml
from eligo.errors import ConfigError
from eligo.io.files import write_text
from eligo.renamed import new_name

SHIPPED = Path(__file__).parents[1] / "configs"


# Not `Self`, which the run-time type checks of the tests cannot resolve.
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    def replace(self: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
        """Return a validated copy with some (dotted) keys changed, e.g. `{"train.steps": 2}`."""
        return load_config(type(self), self, changes)

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """Return the layer in eligo's layout; overridden by configs that read other layouts."""
        return layer

    def without_effect(self) -> dict[str, str]:
        """Return the (dotted) keys that have no effect with the other settings, and why.

        Overridden by configs that have such keys. Commands report those that the user has set.
        """
        return {}


Source = str | Path | Mapping[str, Any] | Config | None


def load_config(
    cls: type[ConfigT], source: Source = None, overrides: Mapping[str, Any] | None = None
) -> ConfigT:
    """Load a config from a YAML file (path or shipped `family/name`), a mapping or defaults.

    Keys of `overrides` may be dotted or nested; they win over the file. From this version on, a key
    that is absent from a saved config means the behaviour from before that key existed: a new key
    gets a default that changes nothing, or the reader of saved configs fills in the old value.
    """
    return validate(cls, read_layer(source), overrides)


def validate(
    cls: type[ConfigT], layer: Layer, overrides: Mapping[str, Any] | None = None
) -> ConfigT:
    """Return the config that a layer describes; all its errors are in one `ConfigError`.

    `overrides` win, as a file wins over the one that it extends. Unusable values and sections are
    errors even where they are replaced.
    """
    if overrides:
        layer = override(layer, overrides)
    check_values(layer)
    below = layer.below
    while below is not None:
        check_values(below)
        check_sections(cls, cls.translated(below))
        below = below.below
    layer = completed(cls, cls.translated(layer))
    try:
        return cls.model_validate(layer.tree)
    except ValidationError as error:
        raise ConfigError(describe(error, cls, layer.tree, layer.where)) from None


def save_config(config: Config, path: str | Path) -> None:
    """Write every value as YAML that `load_config` reads back."""
    write_text(path, dump_yaml(config.model_dump(mode="json")))


def shipped_configs(family: str | None = None) -> list[str]:
    """Return the names of the shipped configs: `name` within a family, else `family/name`."""
    root = SHIPPED / family if family else SHIPPED
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def find_config(
    family: str | None,
    name: str | Path,
    names: Sequence[str] | None = None,
    readers: Sequence[Path] = (),
) -> Path:
    """Return the config file for a path or for the name of a shipped config.

    An error suggests one of `names` (default: the family's configs), but none of `readers`, the
    files that extend this one.
    """
    try:
        path = _find_file(family, Path(name), readers)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # a name too long, no permission, NUL
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name}: cannot be opened ({why}); expected a YAML file") from None
    if path is not None:
        return path
    full = str(name) if family is None or "/" in str(name) else f"{family}/{name}"
    if new := new_name("config", full):
        raise ConfigError(f"{name}: this config is now {new}")
    names = shipped_configs(family) if names is None else names
    listed = f"shipped with eligo: {', '.join(names)}" if names else "none are shipped"
    raise ConfigError(
        f"{str(name) or repr(name)}: neither a file nor a shipped config"
        f"{did_you_mean(str(name), names)} ({listed})"
    )


def _find_file(family: str | None, path: Path, readers: Sequence[Path]) -> Path | None:
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path}: is a pipe, socket or device; expected a YAML file")
    if path.suffix in (".yaml", ".yml"):
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; expected a YAML file")
        beside = [entry for entry in _listed(path.parent) if entry.suffix == path.suffix]
        near = {entry.stem: entry for entry in beside if entry not in readers}
        stem = nearest(path.stem, near)
        hint = f"; did you mean {near[stem]}?" if stem else ""
        raise ConfigError(f"{path}: no such config file{hint}")
    for shipped in (SHIPPED / (family or "") / f"{path}.yaml", SHIPPED / f"{path}.yaml"):
        if shipped.is_file():
            return shipped
    return None


def _listed(folder: Path) -> list[Path]:
    """The files in a folder; none if it cannot be listed."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_file()]
    except OSError:
        return []


def read_layer(
    source: Source, family: str | None = None, names: Sequence[str] | None = None
) -> Layer:
    """Return the tree of a source, merged over the files that it extends; see `find_config`."""
    if source is None:
        return Layer()
    if isinstance(source, Config):
        # serialize_as_any: a field may hold a subclass of its declared type.
        return plain_layer(source.model_dump(round_trip=True, serialize_as_any=True))
    if isinstance(source, Mapping):
        return plain_layer(source)
    return _read_file(find_config(family, source, names), ())


def _read_file(path: Path, readers: tuple[Path, ...]) -> Layer:
    if os.path.realpath(path) in map(os.path.realpath, readers):
        circle = " -> ".join(str(step) for step in (*readers, path))
        raise ConfigError(f"{path}: extends: goes in a circle: {circle}")
    tree, lines = read_yaml(path)
    origins = {key: (0, f"{path}:{line}") for key, line in lines.items()}
    extends = tree.pop("extends", None)
    layer = Layer(tree, {**origins, (): (0, str(path))})
    if extends is None:
        return layer
    where = layer.where(("extends",))
    if not isinstance(extends, str):
        raise ConfigError(f"{where}got {extends!r:.80}, expected one path or shipped config name")
    beside = path.parent / extends
    try:
        is_path = beside.suffix or os.path.isfile(beside)  # noqa: PTH113 (never raises)
        base = find_config(None, beside if is_path else extends, readers=(*readers, path))
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    return layer.over(_read_file(base, (*readers, path)))
