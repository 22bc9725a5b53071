"""From words on a command line to the call of a command's function.

A plain function is tyro's. One with a parameter `config: SomeConfig` becomes
`COMMAND [CONFIG] [--a.b value] [its own flags]`: CONFIG is a shipped name of the family or a path,
its `task:` says which (sub)class of SomeConfig it is, the config's keys are flags over it, and
`--smoke` appears where that class can shrink itself. `config: Annotated[SomeConfig, "name"]` says
which shipped config is meant when none is given.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import make_dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from eligo.cli.flags import check_bounds, flags_of
from eligo.cli.registry import config_class, configs_of
from eligo.cli.result_file import check_out
from eligo.config import Config, Layer, read_layer, validate
from eligo.config.nearest import nearest
from eligo.errors import ConfigError, InputError
from eligo.io.files import check_folder, keeping
from eligo.io.reading import is_special
from eligo.train.config import TrainConfig

_SMOKE = (
    "See it run through: a few steps on your own files, or on a few small scenes; a training goes "
    "to <name>_smoke."
)


def call(
    function: Callable[..., Any], args: list[str], *, prog: str, family: str | None = None
) -> Any:
    """Parse the arguments that a function wants and call it."""
    hints = get_type_hints(function, include_extras=True)
    hint = hints.get("config")
    expected, *default = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not (isinstance(expected, type) and issubclass(expected, Config)):
        given = _parsed(_dataclass(function, _own_flags(function)), args, prog)
        check_bounds(hints, given)
        _refuse_odd(given)
        return _called(function, given)
    if (translate := getattr(expected, "words", None)) is not None:
        args = translate(args)  # flags that another program's documents give for the same things
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
    given = _parsed(_arguments_type(function, cls, layer, names), args[source is not None :], prog)
    check_bounds(hints, given)
    if (stray := given.pop("CONFIG")) is not None:
        raise InputError(
            f"got {str(stray)!r} where no word was expected: CONFIG comes first ({prog} CONFIG "
            "[--key value ...]), and what is on or off takes no value (--key or --no_key)"
        )
    flags, smoke = _written(given.pop("config")), given.pop("smoke", False)
    if names and not (source is not None or default or _required(cls) <= flags.keys()):
        raise InputError(needs_config)
    given["config"] = config = _build(cls, layer, flags, smoke)
    _refuse_odd({**given, "config": None})
    _refuse_odd(config.model_dump())
    return _called(function, given)


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    _check_out(function, given)
    with keeping(v for name, v in given.items() if name != "out" and isinstance(v, Path)):
        return function(**given)


def _check_out(function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Where the output goes is checked before any work: `--out`, or the folder of a run."""
    train = getattr(given.get("config"), "train", None)
    if given.get("out") is not None:
        check_out(given["out"], get_type_hints(function, include_extras=True)["out"])
    elif "out" not in given and isinstance(train, TrainConfig):
        check_folder(train.folder)


def _refuse_odd(given: Any, key: str = "") -> None:
    """Numbers that no tensor holds, and pipes: whatever reads one would wait for ever."""
    told = None
    if isinstance(given, Mapping):
        for name, value in given.items():
            _refuse_odd(value, f"{key}.{name}" if key else str(name))
    elif isinstance(given, list | tuple):
        for value in given:
            _refuse_odd(value, key)
    elif isinstance(given, int) and not -(2**63) <= given < 2**63:
        told = f"got a whole number of {len(str(given))} digits, expected one of 64 bits"
    elif isinstance(given, float) and not math.isfinite(given):
        told = f"got {given}, expected a finite number"
    elif isinstance(given, Path) and key.split(".")[-1] != "out" and is_special(given):
        told = f"{given} is a pipe, socket or device; expected a file or a folder"
    if told:
        raise InputError(f"--{key}: {told}")


def _required(cls: type[Config]) -> set[str]:
    return {name for name, field in cls.model_fields.items() if field.is_required()}


def _written(flags: dict[str, Any]) -> dict[str, Any]:
    """Without the empty dictionaries that tyro returns for configs of which no key was given."""
    inner = {k: _written(v) if isinstance(v, dict) else v for k, v in flags.items()}
    return {key: value for key, value in inner.items() if value != {}}


def _build(cls: type[Config], layer: Layer, flags: dict[str, Any], smoke: bool) -> Config:
    config = validate(cls, layer, flags)
    if not smoke:
        return config
    try:  # what the user asks for by name wins over the shrinking too
        small = config.smoke().replace(flags)  # pyright: ignore[reportAttributeAccessIssue]
    except ConfigError as error:
        told = f"{error}\n--smoke has scenes and sizes of its own: leave out what does not fit them"
        raise ConfigError(told) from None
    train = getattr(small, "train", None)
    if not isinstance(train, TrainConfig):
        return small
    # Whatever it is called: the folder of the real run stays free for it.
    return small.replace({"train.name": f"{train.name}_smoke", "train.smoke": True})


def _arguments_type(
    function: Callable[..., Any], cls: type[Config], layer: Layer, names: list[str]
) -> type:
    """The command's parameters as a dataclass, with the config replaced by its flags."""
    about = "A YAML file" + (f", or a shipped one: {', '.join(names)}." if names else ".")
    positional = tyro.conf.arg(metavar="[CONFIG]", help=about, help_behavior_hint="")
    fields: dict[str, tuple[Any, Any]] = {}
    fields["CONFIG"] = (Annotated[str | None, positional, tyro.conf.Positional], None)
    fields |= _own_flags(function)
    flags = flags_of([cls], layer.tree, without=("task",))
    fields["config"] = (Annotated[flags, tyro.conf.arg(name="")], inspect.Parameter.empty)
    if hasattr(cls, "smoke"):
        fields["smoke"] = (Annotated[_quiet(bool), tyro.conf.arg(help=_SMOKE)], False)
    return _dataclass(function, fields)


def _own_flags(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The parameters of a function: type and default."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.items()
    return {
        name: (_quiet(hints[name]) if _says_nothing(parameter.default) else hints[name],
               parameter.default)
        for name, parameter in parameters
    }  # fmt: skip


def _says_nothing(default: Any) -> bool:
    return default is None or default is False or default in ("", ())


def _quiet(hint: Any) -> Any:
    """A flag whose default is to leave it out: a reader need not be told, nobody types it."""
    told = tyro.conf.arg(help_behavior_hint="")
    return Annotated[hint, told, tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff]


def _dataclass(function: Callable[..., Any], fields: dict[str, tuple[Any, Any]]) -> type:
    """What tyro parses, with the function's docstring; each flag's text is one line for it."""
    return make_dataclass(
        "Arguments",
        [
            (name, hint) if default is inspect.Parameter.empty else (name, hint, default)
            for name, (hint, default) in fields.items()
        ],
        kw_only=True,
        namespace={"__doc__": re.sub(r"\n {8}", " ", inspect.getdoc(function) or "")},
    )


def _parsed(wanted: type, args: list[str], prog: str) -> dict[str, Any]:
    options: dict[str, Any] = {"prog": prog, "use_underscores": True}
    options["config"] = (tyro.conf.PositionalMetavarFromFieldName,)
    parsed, unknown = tyro.cli(wanted, args=args, return_unknown_args=True, **options)
    if not unknown:
        return vars(parsed)
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        raise InputError(
            f"got {unknown[0]!r:.80} where no word was expected; {prog} --help lists the flags"
        )
    with redirect_stdout(StringIO()) as text, suppress(SystemExit):
        tyro.cli(wanted, args=["--help"], **options)
    known = re.findall(r"--([a-z][\w.]*)", text.getvalue())
    found = nearest(flag.partition("=")[0].lstrip("-").replace("-", "_"), known)
    hint = f"; did you mean --{found}?" if found else ""
    raise InputError(f"unknown flag {flag:.80}{hint} ({prog} --help lists all)")
