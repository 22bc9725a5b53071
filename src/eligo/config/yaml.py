"""YAML 1.2 scalars, and the line of every key.

In YAML 1.1, which PyYAML reads, `2e-05` is a string, `off` a boolean, `1:30` a number in base 60
and a date a date. Here numbers may have an exponent without a dot and only true/false are booleans.
A key written twice is an error.

Untrusted files are read in bounded time and memory: bytes, nesting and values (with all aliases
expanded) are limited, and only plain values are accepted (no `!!python`, `!!binary`, ...).
(ruamel.yaml accepts all of these, and dates and `1_000`.)
"""

import re
from pathlib import Path
from typing import Any

import yaml

from eligo.errors import ConfigError, InputError
from eligo.io.reading import read_text

KeyPath = tuple[str, ...]

_MAX_BYTES = 1 << 20
_MAX_VALUES = 50_000  # with every alias expanded
_TOO_LONG = f"more than {_MAX_VALUES} values (aliases expanded); shorten it"
_MAX_DEPTH = 50
_MAX_DIGITS = 100  # Python refuses to read or print more than 4300
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
    """Valid YAML that is not accepted here."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.line = mark.line + 1


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own protocol)
    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """PyYAML's method, with a limit on its recursion."""
        self.depth += 1
        self.count += 1
        if self.depth > _MAX_DEPTH or self.count > 2 * _MAX_VALUES:
            mark = self.peek_event().start_mark
            deep = f"nested deeper than {_MAX_DEPTH} levels; make it flatter"
            raise _RefusedError(deep if self.depth > _MAX_DEPTH else _TOO_LONG, mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return int(text, 16) if "0x" in text else int(text)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own protocol)


for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_int)  # `007` is 7, not octal


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read the mapping in a file, and the line of every key (counted from 1)."""
    try:
        text = read_text(path, most_bytes=_MAX_BYTES)
    except InputError as error:
        raise ConfigError(str(error)) from None
    tree, lines = parse_yaml(text, str(path))
    if not tree:
        raise ConfigError(f"{path}: holds no keys, expected `key: value` lines; another file?")
    return tree, lines


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Parse text as `read_yaml` does; errors name `name` as the file."""
    lines: dict[KeyPath, int] = {}
    try:
        tree, node = _load(text)
        if node is None:
            return {}, lines
    except _RefusedError as error:
        raise ConfigError(f"{name}:{error.line}: {error.problem}") from None
    except yaml.YAMLError as error:
        at, why = _place(error, text), _reason(error)
        raise ConfigError(f"{name}{at}: not valid YAML: {why}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: got a {type(tree).__name__}, expected `key: value` lines")
    _note_lines(node, (), lines)
    return tree, lines


def parse_value(text: str) -> Any:
    """Parse one value, as given to a flag: `3`, `[1, 2]`, `{kl: 0.5}`."""
    try:
        return _load(text)[0]
    except yaml.YAMLError as error:
        raise ValueError(f"got {text!r:.80}, which is not valid YAML: {_reason(error)}") from None


def _load(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the value and its checked node, with `<<: *anchor` expanded; None if empty."""
    loader = _Loader(text)
    node = loader.get_single_node()
    if node is None:
        return None, None
    _check(node, (), {})
    return loader.construct_document(node), node


def _place(error: yaml.YAMLError, text: str) -> str:
    """`:line:column` of an error, as far as known."""
    if isinstance(error, yaml.reader.ReaderError):
        return f":{text.count(chr(10), 0, int(error.position)) + 1}"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    """The reason of an error, on one line."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"it holds the control character U+{error.character:04X}; remove it"
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    return " ".join(", ".join(filter(None, parts)).split()) or str(error)


def dump_yaml(tree: Any, flow: bool = False) -> str:
    """Return YAML that `read_yaml` reads back to the same tree; `flow`: on one line."""
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


def _check(node: yaml.Node, path: KeyPath, sizes: dict[int, int | None]) -> int:
    """Check a node and its children; return the number of values with aliases expanded."""
    if id(node) in sizes:
        if (known := sizes[id(node)]) is None:
            raise _RefusedError("an alias contains itself", node.start_mark)
        return known
    sizes[id(node)] = None
    _check_tag(node)
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path)
    total = 1 + sum(_check(value, (*path, name), sizes) for name, _, value in _children(node))
    if total > _MAX_VALUES:
        raise _RefusedError(_TOO_LONG, node.start_mark)
    sizes[id(node)] = total
    return total


def _check_keys(node: yaml.MappingNode, path: KeyPath) -> None:
    """Refuse keys that are not names, and keys written twice."""
    first: dict[str, int] = {}
    for name, key, _ in _children(node):
        if not isinstance(key, yaml.ScalarNode):
            raise _RefusedError("got a list or mapping as a key, expected a name", key.start_mark)
        _check_tag(key)
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            problem = f"got {name!r:.60} as a key, expected a name; put it in quotes if it is one"
            raise _RefusedError(problem, key.start_mark)
        if name in first and name != "<<":
            dotted = ".".join((*path, name))
            problem = f"{dotted}: written twice, first on line {first[name]}; keep one"
            raise _RefusedError(problem, key.start_mark)
        first[name] = key.start_mark.line + 1


def _check_tag(node: yaml.Node) -> None:
    """Refuse tags of other types, values that do not fit their tag, and very long numbers."""
    if node.tag not in _PLAIN:
        tag = node.tag.replace(_TAG, "!!")
        problem = f"got the tag {tag}, expected a plain value; remove the tag"
        raise _RefusedError(problem, node.start_mark)
    kind = node.tag.removeprefix(_TAG)
    if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
        return
    if not re.fullmatch(_SCALARS[kind][0], node.value):
        problem = f"got {node.value!r:.60} with the tag !!{kind}, expected such a value"
        raise _RefusedError(problem, node.start_mark)
    if kind == "int" and len(node.value) > _MAX_DIGITS:
        problem = f"got a number of {len(node.value)} digits, expected at most {_MAX_DIGITS}"
        raise _RefusedError(problem, node.start_mark)
