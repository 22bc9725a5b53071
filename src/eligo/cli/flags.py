"""Flags of a command, made by tyro from the signature of its function and its config.

A plain function's parameters are flags. A parameter `config: SomeConfig` makes the command
`COMMAND [CONFIG] [--a.b value] [own flags]`: CONFIG is a path or a shipped config of the family,
its `task:` names the (sub)class of SomeConfig, the config's keys are flags that win over the file,
and `--smoke` appears where that class has a method `smoke`. `config: Annotated[SomeConfig, "name"]`
names the shipped config to use if none is given.

Tyro can parse a pydantic model itself, but would validate it without the YAML file and could not
distinguish a given value from a default. So it parses a mirror of the model: nested dictionaries in
which every key is optional, with the help and defaults of the config.
"""

import enum
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import is_dataclass, make_dataclass
from io import StringIO
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
    is_typeddict,
)

import tyro
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from eligo.cli.console import check_out, is_output
from eligo.cli.parse_errors import raise_as_line
from eligo.cli.registry import config_class, configs_of, split_search
from eligo.config import Config, Layer, read_layer, validate
from eligo.config.bounds import Bounds
from eligo.config.effects import unused_keys
from eligo.config.layers import default_of, override, unusable
from eligo.config.problems import configs_in, nearest, union_members
from eligo.config.yaml import dump_yaml, parse_value
from eligo.errors import ConfigError, InputError
from eligo.io.files import check_folder, keeping
from eligo.io.reading import is_special
from eligo.train.config import SearchConfig, TrainConfig

logger = logging.getLogger("eligo.cli")

# Types of flags.
Budget = Annotated[int | float, Bounds(0, above=True)]  # a number of tokens, or a share of them
Count = Annotated[int, Bounds(1)]
Index = Annotated[int, Bounds(0)]
Positive = Annotated[float, Bounds(0, above=True)]
Share = Annotated[float, Bounds(0, 1, above=True)]
Side = Annotated[int, Bounds(32)]  # height and width of an image in pixels
_SCALARS = (bool, int, float, str, Path, type(None))
_BOOLEANS = {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}  # as in a YAML file
_FLAT = (list, tuple, set, frozenset)
_AS_YAML = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=lambda words: parse_value(words[0]),
    is_instance=lambda _: True,
    str_from_instance=lambda value: [str(value)],
)
# With an unknown flag, tyro fills an optional word that is missing with [], which Path refuses.
OptionalPath = Annotated[
    Path | None,
    tyro.conf.Positional,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: Path(str(words[0])),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    ),
]
_SMOKE = (
    "Smoke test: run a few steps on your own files, or on a few small scenes; a training writes to "
    "<name>_smoke."
)


def call(
    function: Callable[..., Any], args: list[str], *, prog: str, family: str | None = None
) -> Any:
    """Parse the arguments of a function and call it."""
    hints = get_type_hints(function, include_extras=True)
    hint = hints.get("config")
    expected, *default = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not (isinstance(expected, type) and issubclass(expected, Config)):
        given = _parsed(_dataclass(function, _own_flags(function)), args, prog)
        check_bounds(hints, given)
        _check_values(given)
        return _checked_call(function, given)
    if (translate := getattr(expected, "words", None)) is not None:
        args = translate(args)  # flags of another program with the same settings
    source = args[0] if args and not args[0].startswith("-") else None
    names = configs_of(expected, family)
    layer = read_layer(next(iter(default), None) if source is None else source, family, names)
    needs_config = (
        f"{prog} needs a CONFIG right after it: a YAML file, or one shipped "
        f"({', '.join(names) or 'none'})"
    )
    if source is None and not default and "task" not in expected.model_fields:
        if not {"-h", "--help"} & set(args):
            raise InputError(needs_config)
        cls = expected
    else:
        cls = config_class(layer, expected)
    search = None
    if hasattr(cls, "build") and "search" not in cls.model_fields:
        layer, search = split_search(layer)
    flags = flags_of([cls], layer.tree, without=("task",))
    args = _with_switches(args[source is not None :], flags)
    given = _parsed(_arguments_type(function, cls, flags, names), args, prog)
    check_bounds(hints, given)
    if (stray := given.pop("CONFIG")) is not None:
        raise InputError(
            f"got {str(stray)!r}, an unexpected word: CONFIG comes first ({prog} CONFIG "
            "[--key value ...]), and a switch is --key, --no_key, --key true or --key false"
        )
    flags, smoke = _written(given.pop("config")), given.pop("smoke", False)
    if names and not (source is not None or default or _required(cls) <= flags.keys()):
        raise InputError(needs_config)
    config = validate(cls, layer, flags)
    search = search or getattr(config, "search", None)
    if isinstance(search, SearchConfig):
        name = str(source or next(iter(default), "CONFIG"))
        name = name if "/" in name or Path(name).is_file() else f"{family}/{name}"
        unused = _search_in_training(search, override(layer, flags), cls, prog, name)
    else:
        unused = {}
    if os.environ.get("RANK", "0") == "0":  # once, however many processes were launched
        for line in unused_keys(config, layer, flags, unused):
            logger.warning(line)
    given["config"] = config = _small(config, flags) if smoke else config
    _check_values({**given, "config": None})
    _check_values(config.model_dump())
    return _checked_call(function, given)


def _checked_call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function after a check that its outputs, or the folder of its run, can be written."""
    train = getattr(given.get("config"), "train", None)
    hints = get_type_hints(function, include_extras=True)
    outputs = {name for name in given if name == "out" or is_output(hints[name])}
    for name in outputs:
        if given[name] is not None:
            check_out(given[name], hints[name], name)
    if "out" not in given and isinstance(train, TrainConfig):
        check_folder(train.folder)
    with keeping(v for name, v in given.items() if name not in outputs and isinstance(v, Path)):
        return function(**given)


def _check_values(given: Any, key: str = "") -> None:
    """Refuse numbers that do not fit a tensor, and pipes, which would block the reader."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            _check_values(value, f"{key}.{name}" if key else str(name))
    elif isinstance(given, list | tuple):
        for value in given:
            _check_values(value, key)
    elif isinstance(given, int | float) and (problem := unusable(given)):
        raise InputError(f"--{key}: {problem}")
    elif isinstance(given, Path) and key.split(".")[-1] != "out" and is_special(given):
        raise InputError(
            f"--{key}: {given} is a pipe, socket or device; expected a file or a folder"
        )


def _required(cls: type[Config]) -> set[str]:
    return {name for name, field in cls.model_fields.items() if field.is_required()}


def _written(flags: dict[str, Any]) -> dict[str, Any]:
    """Drop the empty dictionaries that tyro returns for configs of which no key was given."""
    inner = {k: _written(v) if isinstance(v, dict) else v for k, v in flags.items()}
    return {key: value for key, value in inner.items() if value != {}}


def _search_in_training(
    search: SearchConfig, layer: Layer, cls: type[Config], prog: str, source: str
) -> dict[str, str]:
    """Refuse a file that asks for a search; return why its section has no effect in a training."""
    if search.enable:
        raise ConfigError(
            f"{cls.translated(layer).where(('search', 'enable'))}asks for a search: run "
            f"`eligo search {source}`, or set `enable: false` to train once"
        )
    reason = f"this is one training; `eligo search {source}` runs the search"
    if search.enable is False:
        reason = "this is one training, and `enable` is false"
    unused = {"search": reason, "search.trials": reason, "search.gpus_per_worker": reason}
    unused["search.enable"] = ""  # it is what allows the training
    if search.gpus:
        count = max(search.gpus_per_worker, 2)
        launch = f"accelerate launch --num_processes {count} -m {prog} {source}"
        unused["search.gpus"] = f"it divides GPUs in a search; to train on {count}: {launch}"
        unused["search"] = f"{reason}; to train on {count} GPUs: {launch}"
    return unused


def _small(config: Config, flags: dict[str, Any]) -> Config:
    """Return the config of a smoke test, in a folder of its own."""
    try:  # the user's flags win over the smaller settings too
        small = config.smoke().replace(flags)  # pyright: ignore[reportAttributeAccessIssue]
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n--smoke sets its own scenes and sizes: leave out flags that do not fit"
        ) from None
    train = getattr(small, "train", None)
    if not isinstance(train, TrainConfig):
        return small
    # Does not use the folder of the real run.
    return small.replace({"train.name": f"{train.name}_smoke", "train.smoke": True})


def _arguments_type(
    function: Callable[..., Any], cls: type[Config], flags: Any, names: list[str]
) -> type:
    """Return the command's parameters as a dataclass, with the config replaced by its flags."""
    about = "A YAML file" + (f", or a shipped one: {', '.join(names)}." if names else ".")
    positional = tyro.conf.arg(metavar="[CONFIG]", help=about, help_behavior_hint="")
    fields: dict[str, tuple[Any, Any]] = {}
    fields["CONFIG"] = (Annotated[str | None, positional, tyro.conf.Positional], None)
    fields |= _own_flags(function)
    fields["config"] = (Annotated[flags, tyro.conf.arg(name="")], inspect.Parameter.empty)
    if hasattr(cls, "smoke"):
        fields["smoke"] = (Annotated[_quiet(bool), tyro.conf.arg(help=_SMOKE)], False)
    return _dataclass(function, fields)


def _with_switches(args: list[str], flags: Any) -> list[str]:
    """Write the booleans of YAML as tyro reads them: `--a.b false` becomes `--a.no_b`."""
    types, words = dict(_scalars_of(flags)), list(args)
    for at, arg in reversed(list(enumerate(args))):
        flag, has_value, text = arg.partition("=")
        name = flag[2:].replace("-", "_")
        allowed = types.get(name, []) if flag.startswith("--") else []
        value = _BOOLEANS.get(text if has_value else "".join(args[at + 1 : at + 2]))
        if bool not in allowed or value is None:
            continue
        section, dot, key = name.rpartition(".")
        switch = f"--{section}{dot}{key if value else f'no_{key}'}"
        is_switch = allowed == [bool]
        words[at : at + 2 - bool(has_value)] = [switch] if is_switch else [flag, str(value)]
    return words


def _scalars_of(flags: Any, section: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of each flag of a config, without its dashes, with the types it may have."""
    for name, hint in flags.__annotations__.items():
        inner = get_args(hint)[0]
        if is_typeddict(inner):
            yield from _scalars_of(inner, f"{section}{name}.")
        else:
            yield f"{section}{name}", union_members(inner)


def _own_flags(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each parameter of a function."""
    hints = get_type_hints(function, include_extras=True)
    flags = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        is_quiet = default is None or default is False or default in ("", ())
        flags[name] = (_quiet(hints[name]) if is_quiet else hints[name], default)
    return flags


def _quiet(hint: Any) -> Any:
    """Hide the default of a flag in the help."""
    arg = tyro.conf.arg(help_behavior_hint="")
    return Annotated[hint, arg, tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff]


def _dataclass(function: Callable[..., Any], fields: dict[str, tuple[Any, Any]]) -> type:
    """Return the type that tyro parses, with the function's docstring (one line per flag)."""
    return make_dataclass(
        "Arguments",
        [
            (name, hint) if default is inspect.Parameter.empty else (name, hint, default)
            for name, (hint, default) in fields.items()
        ],
        kw_only=True,
        namespace={"__doc__": re.sub(r"\n {8}", " ", inspect.getdoc(function) or "")},
    )


def _parsed(arguments: type, args: list[str], prog: str) -> dict[str, Any]:
    options: dict[str, Any] = {"prog": prog, "use_underscores": True}
    options["config"] = (tyro.conf.PositionalMetavarFromFieldName,)
    parsed, unknown = raise_as_line(
        lambda: tyro.cli(arguments, args=args, return_unknown_args=True, **options), args, prog
    )
    if not unknown:
        return vars(parsed)
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        raise InputError(
            f"got {unknown[0]!r:.80}, an unexpected word; {prog} --help lists the flags"
        )
    with redirect_stdout(StringIO()) as text, suppress(SystemExit):
        tyro.cli(arguments, args=["--help"], **options)
    known = re.findall(r"--([a-z][\w.]*)", text.getvalue())
    match = nearest(flag.partition("=")[0].lstrip("-").replace("-", "_"), known)
    hint = f"; did you mean --{match}?" if match else ""
    raise InputError(f"unknown flag {flag:.80}{hint} ({prog} --help lists all)")


def flags_of(configs: list[Any], tree: Any, without: tuple[str, ...] = ()) -> Any:
    """Return the flags of a config, or of all members of a union; `tree` has the values so far."""
    tree = tree if isinstance(tree, Mapping) else {}
    fields: dict[str, list[FieldInfo]] = {}
    for config in configs:
        for name, field in config.model_fields.items():
            fields.setdefault(name, []).append(field)
    chosen = next((config for config in configs if _fits(config, tree)), configs[0]).model_fields
    hints = {
        name: _flag(same, tree.get(name, default_of(chosen.get(name, same[0]))))
        for name, same in fields.items()
        if name not in without and same[0].json_schema_extra != {"flag": False}
    }
    return TypedDict("Flags", hints, total=False)  # pyright: ignore[reportArgumentType]


def _fits(config: Any, tree: Mapping[str, Any]) -> bool:
    """Whether a member of a union allows the values so far of keys such as `kind` and `version`."""
    return all(
        tree[name] in get_args(field.annotation)
        for name, field in config.model_fields.items()
        if name in tree and get_origin(field.annotation) is Literal
    )


def _flag(fields: list[FieldInfo], value: Any) -> Any:
    """Return the type of one flag, from the fields of all union members with its name."""
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
    """Return the configs that a field holds directly (not in a list or dictionary)."""
    inner = configs_in(annotation)
    return inner if set(union_members(annotation)) <= {*inner, type(None)} else []


def _is_plain(annotation: Any) -> bool:
    """Whether a type is a scalar or a flat list of scalars, which can be given as plain words."""
    for part in union_members(annotation):
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
    """Return a default as the user would write it."""
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
        for number in value if isinstance(value, tuple | list) else [value]:
            if isinstance(number, int | float) and not isinstance(number, bool):
                bounds.check(f"--{named}", number)


def _bounds_in(hint: Any) -> Bounds:
    """Return the bounds of a number, an optional number or a list of numbers."""
    for entry in _metadata(hint):
        if isinstance(entry, Bounds):
            return entry
    inner = (_bounds_in(part) for part in get_args(hint) if part is not Ellipsis)
    return next((bounds for bounds in inner if bounds != Bounds()), Bounds())


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()
