"""YAML as people mean it: 1.2 scalars, and the line of every key.

PyYAML speaks YAML 1.1, where `2e-05` is a string, `off` a boolean, `1:30` a number in base 60 and
a date a date. Here numbers may have an exponent without a dot and only true/false are booleans.
A key written twice is an error: PyYAML would silently keep the last one.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from eligo.errors import ConfigError

KeyPath = tuple[str, ...]

_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own protocol)

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return int(text, 16) if "0x" in text else int(text)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own protocol)


for _tag, (_pattern, _first) in _SCALARS.items():
    for _speaker in (_Loader, _Dumper):
        _speaker.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
        )
# `007` is seven, not octal; and 1.1 would read `1_000` and `1:30` as numbers.
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping in a file, and the line of every key in it (counted from 1)."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """As `read_yaml`, from text; `name` is what errors call it."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        _check_duplicates(node, (), name)
        tree = loader.construct_document(node)
        if not isinstance(tree, dict):
            raise ConfigError(f"{name}: got a {type(tree).__name__}, expected `key: value` lines")
        # After construction, because that is what expands `<<: *anchor`.
        _note_lines(node, (), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{at}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: not valid here: an alias contains itself") from None
    return tree, lines


def parse_value(text: str) -> Any:
    """One value in YAML, as given to a flag: `3`, `[1, 2]`, `{kl: 0.5}`."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        why = getattr(error, "problem", None) or error
        raise ValueError(f"got {text!r}, which is not valid YAML: {why}") from None


def dump_yaml(tree: Any, flow: bool = False) -> str:
    """Text that `read_yaml` reads back to the same tree; `flow` puts it on one line."""
    options = {"default_flow_style": True, "width": float("inf")} if flow else {}
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)
    return text.rstrip() if flow else text


def _children(node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(str(index), item, item) for index, item in enumerate(node.value)]
    return []


def _note_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    for name, key, value in _children(node):
        lines[*path, name] = key.start_mark.line + 1
        _note_lines(value, (*path, name), lines)


def _check_duplicates(node: yaml.Node, path: KeyPath, name: str) -> None:
    first: dict[str, int] = {}
    for key_name, key, value in _children(node):
        line = key.start_mark.line + 1
        key_path = (*path, key_name)
        if key_name in first and key_name != "<<":
            raise ConfigError(
                f"{name}:{line}: {'.'.join(key_path)}: written twice, first on line "
                f"{first[key_name]}; keep one"
            )
        first[key_name] = line
        _check_duplicates(value, key_path, name)
