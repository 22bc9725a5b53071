"""Keys that a file or a flag sets, but that have no effect with the other settings."""

from collections.abc import Iterator, Mapping
from typing import Any

from eligo.config import SHIPPED, Config
from eligo.config.layers import Layer, default_of, override
from eligo.config.yaml import KeyPath


def unused_keys(
    config: Config,
    layer: Layer,
    overrides: Mapping[str, Any] | None = None,
    also: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a line for each key without effect that a layer (not a shipped file) or a flag sets.

    Keys that are set to their default are left out.

    `config` is what `validate` returned for them; its `without_effect` gives the reasons, `also`
    those of the command.
    """
    given = override(layer, overrides or {})
    layer = config.translated(given)
    reasons = dict(_reasons(config)) | dict(also or {})
    unused: dict[KeyPath, str] = {}
    for path, (_, origin) in sorted(layer.origins.items(), key=lambda entry: len(entry[0])):
        if (
            not path
            or not _is_given(origin)
            or any(path[:end] in unused for end in range(len(path)))
        ):
            continue
        reason = _reason(path, reasons)
        if reason and _is_default(path, config):  # a saved config has every key
            continue
        if reason := reason or _other_kind(path, config):
            unused[path] = f"{layer.where(path)}has no effect here: {reason}"
        elif reason := _replaced(path, given, layer):
            unused[path] = f"{given.where(path)}has no effect here: {reason}"
    return [unused[path] for path in layer.origins if path in unused]  # in the order of the file


def reason_of(config: Config, key: str) -> str | None:
    """Return why a (dotted) key has no effect with the settings of a config; None if it has one."""
    return _reason(tuple(key.split(".")), dict(_reasons(config)))


def _reason(path: KeyPath, reasons: Mapping[str, str]) -> str | None:
    """Return the reason of a key, or of the closest section around it."""
    around = (".".join(path[:end]) for end in range(len(path), 0, -1))
    return next((reasons[key] for key in around if key in reasons), None)


def _is_given(origin: str) -> bool:
    return origin != "" and not origin.startswith(str(SHIPPED))


def _reasons(config: Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys without effect of a config and of the configs in it."""
    for key, reason in config.without_effect().items():
        yield prefix + key, reason
    for name, value in config:
        if isinstance(value, Config):
            yield from _reasons(value, f"{prefix}{name}.")


def _is_default(path: KeyPath, config: Any) -> bool:
    default: Any = None
    for name in path:
        if isinstance(config, list | tuple | dict):
            break  # compare all of it
        if not _has(config, name):
            return False
        # An outer config may have another default for this key than its own class.
        own = default_of(type(config).model_fields[name])
        default = getattr(default, name) if _has(default, name) else own
        config = getattr(config, name)
    return config == default


def _has(config: Any, name: str) -> bool:
    return isinstance(config, Config) and name in type(config).model_fields


def _other_kind(path: KeyPath, config: Any) -> str | None:
    """Return a reason if the key belongs to another member of a union than the chosen one."""
    for depth, name in enumerate(path):
        if not isinstance(config, Config):
            return None
        if not _has(config, name):
            tags = (tag for tag in ("kind", "version") if hasattr(config, tag))
            key = next((".".join((*path[:depth], tag)) for tag in tags), None)
            return f"{key} is {getattr(config, key.split('.')[-1])}" if key else None
        config = getattr(config, name)
    return None


def _replaced(path: KeyPath, given: Layer, layer: Layer) -> str | None:
    """Return a reason if the translation to eligo's layout replaced the value of a file."""
    (rank, origin), (before, file) = layer.origins[path], given.origins.get(path, (-1, ""))
    if before < rank or file == origin or not _is_given(file):
        return None
    was, now = (_text(tree, path) for tree in (given.tree, layer.tree))
    return None if was == now else f"{origin} decides"


def _text(tree: Any, path: KeyPath) -> str:
    for name in path:
        tree = tree.get(name, {})
    return str(list(tree) if isinstance(tree, tuple) else tree)
