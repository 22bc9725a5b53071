"""Typed configs: frozen pydantic models <-> YAML <-> command line.

Files, the files they extend and the command line are merged as plain trees, later wins, and the
result is validated once: what a later layer repairs is no error, and a problem is reported with
the file and line, or the flag, that its value came from.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from eligo.config.layers import Layer, completed, override, plain_layer
from eligo.config.nearest import did_you_mean
from eligo.config.problems import describe
from eligo.config.yaml import dump_yaml, read_yaml
from eligo.errors import ConfigError
from eligo.files import write_text

SHIPPED = Path(__file__).parents[1] / "configs"


# Not `Self`: the run-time checks of the tests look at one method at a time.
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )

    def replace(self: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
        """A validated copy with some (dotted) keys changed, e.g. `{"train.steps": 2}`."""
        return load_config(type(self), self, changes)

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """The layer in our layout; a config that can be written in another one overrides this."""
        return layer


Source = str | Path | Mapping[str, Any] | Config | None


def load_config(
    cls: type[ConfigT], source: Source = None, overrides: Mapping[str, Any] | None = None
) -> ConfigT:
    """A validated config from a YAML file (path or shipped `family/name`), a mapping or defaults.

    Keys of `overrides` may be dotted or nested; they win over the file.
    """
    return validate(cls, override(read_layer(source), overrides or {}))


def validate(cls: type[ConfigT], layer: Layer) -> ConfigT:
    """The config that a layer describes; all its problems in one `ConfigError`."""
    layer = completed(cls, cls.translated(layer))
    try:
        return cls.model_validate(layer.tree)
    except ValidationError as error:
        raise ConfigError(describe(error, cls, layer.tree, layer.where)) from None


def save_config(config: Config, path: str | Path) -> None:
    """Write every value as YAML that `load_config` reads back; never leaves half a file."""
    write_text(path, dump_yaml(config.model_dump(mode="json")))


def shipped_configs(family: str | None = None) -> list[str]:
    """The names of the configs in the package: `name` within a family, else `family/name`."""
    root = SHIPPED / family if family else SHIPPED
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def find_config(family: str | None, name: str | Path, names: Sequence[str] | None = None) -> Path:
    """The file meant by a path, or by the name of a shipped config.

    `names` are those to offer where there is none such; the family's, if they are not given.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml"):
        near = [entry.name for entry in path.parent.glob("*") if entry.suffix == path.suffix]
        raise ConfigError(f"{path}: no such config file{did_you_mean(path.name, near)}")
    for shipped in (SHIPPED / (family or "") / f"{name}.yaml", SHIPPED / f"{name}.yaml"):
        if shipped.is_file():
            return shipped
    names = shipped_configs(family) if names is None else names
    listed = f"shipped with eligo: {', '.join(names)}" if names else "none are shipped"
    raise ConfigError(
        f"{name}: neither a file nor a shipped config{did_you_mean(str(name), names)} ({listed})"
    )


def read_layer(
    source: Source, family: str | None = None, names: Sequence[str] | None = None
) -> Layer:
    """The tree of a source, with everything that its `extends:` brings in; see `find_config`."""
    if source is None:
        return Layer()
    if isinstance(source, Config):
        # As any: a field may hold a subclass of what it declares.
        return plain_layer(source.model_dump(round_trip=True, serialize_as_any=True))
    if isinstance(source, Mapping):
        return plain_layer(source)
    return _read_file(find_config(family, source, names), ())


def _read_file(path: Path, readers: tuple[Path, ...]) -> Layer:
    if path.resolve() in [reader.resolve() for reader in readers]:
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
        raise ConfigError(f"{where}got {extends!r}, expected one path or shipped config name")
    beside = path.parent / extends
    try:
        base = find_config(None, beside if beside.suffix or beside.is_file() else extends)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    return layer.over(_read_file(base, (*readers, path)))
