"""YAML as people mean it: 1.2 scalars, and the line of every key.

PyYAML speaks YAML 1.1, where `2e-05` is a string, `off` a boolean, `1:30` a number in base 60 and
a date a date. Here numbers may have an exponent without a dot and only true/false are booleans.
A key written twice is an error: PyYAML would silently keep the last one.

Anybody's file is read in bounded time and memory: its size, its nesting and its size with all
aliases expanded are limited, and only plain values are accepted (no `!!python`, `!!binary`, ...).
"""

import re
from pathlib import Path
from typing import Any

import yaml

from eligo.errors import ConfigError, InputError
from eligo.io.reading import read_text

KeyPath = tuple[str, ...]

_MOST_BYTES = 1 << 20
_MOST_VALUES = 50_000  # with every alias expanded
_TOO_LONG = f"more than {_MOST_VALUES} values (aliases expanded); shorten it"
_DEEPEST = 50
_MOST_DIGITS = 100  # Python refuses to read (or print) more than 4300
_TAG = "tag:yaml.org,2002:"

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


_PLAIN = {f"{_TAG}{name}" for name in (*_SCALARS, "str", "seq", "map")}


class _RefusedError(yaml.MarkedYAMLError):
    """Valid YAML, but not accepted here."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.line = mark.line + 1


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own protocol)
    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As PyYAML's, which recurses as deep as the text is nested."""
        self.depth += 1
        self.count += 1
        if self.depth > _DEEPEST or self.count > 2 * _MOST_VALUES:
            mark = self.peek_event().start_mark
            deep = f"nested deeper than {_DEEPEST} levels; make it flatter"
            raise _RefusedError(deep if self.depth > _DEEPEST else _TOO_LONG, mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

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
        text = read_text(path, most_bytes=_MOST_BYTES)
    except InputError as error:
        raise ConfigError(str(error)) from None
    tree, lines = parse_yaml(text, str(path))
    if not tree:
        raise ConfigError(
            f"{path}: holds no keys, expected `key: value` lines; is it another file?"
        )
    return tree, lines


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """As `read_yaml`, from text; `name` is what errors call it."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = _checked_node(loader)
        if node is None:
            return {}, lines
        tree = loader.construct_document(node)
    except _RefusedError as error:
        raise ConfigError(f"{name}:{error.line}: {error.problem}") from None
    except yaml.YAMLError as error:
        at, why = _place(error, text), _reason(error)
        raise ConfigError(f"{name}{at}: not valid YAML: {why}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: got a {type(tree).__name__}, expected `key: value` lines")
    # After construction, because that is what expands `<<: *anchor`.
    _note_lines(node, (), lines)
    return tree, lines


def parse_value(text: str) -> Any:
    """One value in YAML, as given to a flag: `3`, `[1, 2]`, `{kl: 0.5}`."""
    try:
        loader = _Loader(text)
        node = _checked_node(loader)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(f"got {text!r:.80}, which is not valid YAML: {_reason(error)}") from None


def _checked_node(loader: _Loader) -> yaml.Node | None:
    """The one document of a text, if there is any, with nothing in it that we do not accept."""
    node = loader.get_single_node()
    if node is not None:
        _check_size(node)
        _check_nodes(node, ())
    return node


def _place(error: yaml.YAMLError, text: str) -> str:
    """`:line:column` of an error, or as much of it as is known."""
    if isinstance(error, yaml.reader.ReaderError):
        return f":{text.count(chr(10), 0, int(error.position)) + 1}"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    """What is wrong, on one line."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"it holds the control character U+{error.character:04X}; remove it"
    told = (getattr(error, "context", None), getattr(error, "problem", None))
    return " ".join(", ".join(filter(None, told)).split()) or str(error)


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


def _check_size(root: yaml.Node) -> None:
    """Refuse aliases that contain themselves, or that expand to more than we would look at."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise _RefusedError("an alias contains itself", node.start_mark)
            return known
        sizes[id(node)] = None
        total = 1 + sum(size(value) for _, _, value in _children(node))
        if total > _MOST_VALUES:
            raise _RefusedError(_TOO_LONG, node.start_mark)
        sizes[id(node)] = total
        return total

    size(root)


def _check_nodes(node: yaml.Node, path: KeyPath) -> None:
    """Refuse what is no plain value, keys that are no scalars, and keys written twice."""
    if node.tag not in _PLAIN:
        tag = node.tag.replace(_TAG, "!!")
        told = f"got the tag {tag}, expected a plain value; remove the tag"
        raise _RefusedError(told, node.start_mark)
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node)
    first: dict[str, int] = {}
    for name, key, value in _children(node):
        line = key.start_mark.line + 1
        key_path = (*path, name)
        if not isinstance(node, yaml.MappingNode):
            _check_nodes(value, key_path)
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise _RefusedError("got a list or mapping as a key, expected a name", key.start_mark)
        _check_nodes(key, key_path)
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            told = f"got {name!r:.60} as a key, expected a name; put it in quotes if it is one"
            raise _RefusedError(told, key.start_mark)
        if name in first and name != "<<":
            dotted = ".".join(key_path)
            told = f"{dotted}: written twice, first on line {first[name]}; keep one"
            raise _RefusedError(told, key.start_mark)
        first[name] = line
        _check_nodes(value, key_path)


def _check_scalar(node: yaml.ScalarNode) -> None:
    """An explicit tag (`!!int x`) must fit, and a number must be one that Python can print."""
    kind = node.tag.removeprefix(_TAG)
    if kind in _SCALARS and not re.fullmatch(_SCALARS[kind][0], node.value):
        told = f"got {node.value!r:.60} with the tag !!{kind}, expected such a value"
        raise _RefusedError(told, node.start_mark)
    if kind == "int" and len(node.value) > _MOST_DIGITS:
        told = f"got a number of {len(node.value)} digits, expected at most {_MOST_DIGITS}"
        raise _RefusedError(told, node.start_mark)
