"""Error messages for configs: one line per key, with its place, what was expected and a suggestion.

"Place" is the file and line, or the flag; the suggestion is the nearest valid key or value.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from eligo.renamed import new_name

_TASK = ("task",)
_MAX_CHARACTERS = 200  # compared; the time grows with their square


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar of the words, if any is similar; never the word itself."""
    others = [other for other in words if other != word]
    return next(iter(get_close_matches(word[:_MAX_CHARACTERS], others, n=1, cutoff=0.6)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean X?`, or an empty string."""
    match = nearest(word, words)
    return f"; did you mean {match}?" if match else ""


def configs_in(annotation: Any) -> list[type[BaseModel]]:
    """Return every config class in an annotation, through unions, `Annotated` and containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [config for part in get_args(annotation) for config in configs_in(part)]


def union_members(annotation: Any) -> list[Any]:
    """Return the members of a union, without `Annotated`; otherwise the annotation itself."""
    if get_origin(annotation) is Annotated:
        return union_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for part in get_args(annotation) for member in union_members(part)]
    return [annotation]


def describe(
    error: ValidationError, cls: type[BaseModel], tree: Any, where: Callable[[tuple[str, ...]], str]
) -> str:
    """Return the message for a failed validation; `where` gives the place of a key."""
    messages: dict[tuple[str, ...], list[str]] = {}
    for problem in error.errors(include_url=False):
        path, annotation = _locate(problem["loc"], cls, tree)
        path, words = _in_words(problem, path, annotation, (cls, tree))
        messages.setdefault(path, []).append(words)
    if _TASK in messages:  # a file for another command: its other keys do not matter
        messages = {_TASK: messages[_TASK]}
    # In a union, errors about inner keys come from the member that fits the value best.
    around = {path[:end] for path in messages for end in range(len(path))}
    return "\n".join(
        where(path) + _joined(words) for path, words in messages.items() if path not in around
    )


def _locate(loc: Sequence[int | str], cls: type[BaseModel], tree: Any) -> tuple[tuple, Any]:
    """The key path of a pydantic location and the annotation of what holds it.

    Pydantic also puts the names of union members into locations; those are left out.
    """
    path, annotation, parent, value = [], cls, cls, tree
    tag = None
    for part in loc:
        if tag is not None and isinstance(value, Mapping) and part == value.get(tag):
            annotation, tag = _member(annotation, part), None
            continue
        fields = [config.model_fields.get(str(part)) for config in configs_in(annotation)]
        field = next(filter(None, fields), None)
        is_key = isinstance(value, Mapping) and part in value
        is_index = isinstance(value, Sequence) and isinstance(part, int) and part < len(value)
        if not (field or is_key or is_index):
            annotation = _member(annotation, part)
            continue
        parent = annotation
        tag = None
        if field:
            annotation = field.annotation
            tag = field.discriminator if isinstance(field.discriminator, str) else None
        value = value[part] if is_key or is_index else None  # pyright: ignore[reportOptionalSubscript, reportArgumentType, reportCallIssue]
        path.append(str(part))
    return tuple(path), parent


def _member(annotation: Any, name: int | str) -> Any:
    """The member of a union that pydantic calls by its tag or its class."""
    for config in configs_in(annotation):
        fields = config.model_fields.values()
        if name == config.__name__ or any(name in get_args(field.annotation) for field in fields):
            return config
    return annotation


def _in_words(
    problem: Any, path: tuple[str, ...], parent: Any, root: tuple[type[BaseModel], Any]
) -> tuple[tuple[str, ...], str]:
    kind, message, got = problem["type"], problem["msg"], _short(problem["input"])
    context = problem.get("ctx", {})
    if kind == "extra_forbidden":
        return path, "unknown key" + _nearest_key(path, parent, root)
    if kind == "missing":
        return path, f"missing{_doc(path, parent)}"
    if kind == "union_tag_invalid":
        path = (*path, context["discriminator"].strip("'"))
        tags = context["expected_tags"]
        return (
            path,
            f"got {context['tag']!r}, expected {tags}{_nearest_value(context['tag'], tags)}",
        )
    if kind == "union_tag_not_found":
        return (*path, context["discriminator"].strip("'")), "missing; it names the kind"
    if kind == "model_type":
        keys = ", ".join(_keys_at(parent, path))
        return path, f"got {got}, expected a mapping with the keys {keys}"
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
        # The input of a validator of a whole config is too long to repeat.
        return path, text if isinstance(problem["input"], Mapping) else f"got {got}: {text}"
    expected = re.sub(r", unable to .*", "", message.removeprefix("Input should be "))
    expected = expected.replace("a valid dictionary", "a mapping").replace("a valid list", "a list")
    expected = re.sub(r"^\w+ should have (.*?)( after validation)?(, not \d+)?$", r"\1", expected)
    # Another task is not a typing error: the file belongs to another command.
    is_typo = kind == "literal_error" and path != _TASK
    hint = _nearest_value(problem["input"], expected) if is_typo else ""
    if path == _TASK and (new := new_name("task", str(problem["input"]))):
        hint = f"; it is now {new}"
    if problem["input"] in ("None", "none"):
        hint = "; write null in YAML"
    return path, f"got {got}, expected {expected}{hint}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _joined(words: list[str]) -> str:
    """The messages of all members of a union about one value, as one."""
    first, *others = dict.fromkeys(words)
    head = first.partition(", expected ")[0] + ", expected "
    same = [word.removeprefix(head) for word in others if word.startswith(head)]
    return " or ".join([first, *same])


def _keys_at(parent: Any, path: tuple[str, ...]) -> list[str]:
    """The keys of the config that belongs at the end of a path."""
    for config in configs_in(parent):
        field = config.model_fields.get(path[-1]) if path else None
        if field:
            return [name for inner in configs_in(field.annotation) for name in inner.model_fields]
    return [name for config in configs_in(parent) for name in config.model_fields]


def _nearest_key(path: tuple[str, ...], parent: Any, root: tuple[type[BaseModel], Any]) -> str:
    if kind := _other_kind(path, root[0]):
        return kind
    siblings = list(dict.fromkeys(k for config in configs_in(parent) for k in config.model_fields))
    if sibling := nearest(path[-1], siblings):
        return f"; did you mean {'.'.join((*path[:-1], sibling))}?"
    # Another common error: the right key in the wrong section.
    elsewhere = [key for key in dotted_keys(*root) if key.split(".")[-1] == path[-1]]
    elsewhere = [key for key in elsewhere if key != ".".join(path)]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; valid keys here: {', '.join(siblings)}"


def _other_kind(path: tuple[str, ...], cls: type[BaseModel]) -> str:
    """Name the members of a tagged union that do have this key."""
    members, tag = [cls], None
    for part in path[:-1]:
        fields = [member.model_fields[part] for member in members if part in member.model_fields]
        if not fields:
            return ""
        members, tag = configs_in(fields[0].annotation), fields[0].discriminator
    if not isinstance(tag, str):
        return ""
    owners = [member.model_fields[tag] for member in members if path[-1] in member.model_fields]
    kinds = " or ".join(str(kind) for owner in owners for kind in get_args(owner.annotation))
    return f" here; it belongs to {'.'.join((*path[:-1], tag))} {kinds}" if kinds else ""


def dotted_keys(
    config: type[BaseModel], tree: Mapping[str, Any] | None = None, prefix: str = ""
) -> Iterator[str]:
    """Yield every key of a config and its inner configs; with a tree, of the chosen members."""
    for name, field in config.model_fields.items():
        yield prefix + name
        value = None if tree is None else tree.get(name, {})
        inner = configs_in(field.annotation)
        if isinstance(field.discriminator, str) and isinstance(value, Mapping):
            chosen = _member(field.annotation, value.get(field.discriminator, ""))
            inner = [chosen] if chosen in inner else []
        if tree is not None and (len(inner) > 1 or not isinstance(value, Mapping)):
            continue  # it is not known which member is meant
        for inner_config in inner:
            yield from dotted_keys(inner_config, value, f"{prefix}{name}.")


def _nearest_value(value: Any, expected: str) -> str:
    return did_you_mean(str(value), re.findall(r"'([^']*)'", expected))


def _doc(path: tuple[str, ...], parent: Any) -> str:
    for config in configs_in(parent):
        field = config.model_fields.get(path[-1])
        if field:
            name = getattr(field.annotation, "__name__", str(field.annotation))
            return f"; expected {name}" + (f": {field.description}" if field.description else "")
    return ""
