"""Training-free methods behind one protocol, by name.

A method is a frozen config that selects: `build("tome", rounds=2)`. Its `space` lists the options
worth tuning, and `proposals` gives every method the same number of trials.
"""

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from eligo.config import load_config
from eligo.config.problems import did_you_mean
from eligo.config.yaml import parse_value
from eligo.errors import InputError
from eligo.tokens.methods.attention import FastV, PyramidDrop
from eligo.tokens.methods.base import Method
from eligo.tokens.methods.diverse import CDPruner, DivPrune
from eligo.tokens.methods.grid import GridPooling, UniformGrid
from eligo.tokens.methods.oracle import Oracle
from eligo.tokens.methods.plain import KeepAll, RandomTokens
from eligo.tokens.methods.sparsevlm import SparseVLM
from eligo.tokens.methods.tome import ToMe
from eligo.tokens.methods.visionzip import VisionZip
from eligo.train.rng import mix

AnyMethod = Annotated[
    KeepAll
    | RandomTokens
    | UniformGrid
    | GridPooling
    | ToMe
    | FastV
    | PyramidDrop
    | VisionZip
    | DivPrune
    | CDPruner
    | SparseVLM
    | Oracle,
    Field(discriminator="name"),
]
"""For a config's field: `reducer: AnyMethod` reads `{name: tome, rounds: 2}`."""

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {
        "none": KeepAll,
        "random": RandomTokens,
        "uniform": UniformGrid,
        "pool": GridPooling,
        "tome": ToMe,
        "fastv": FastV,
        "pyramiddrop": PyramidDrop,
        "visionzip": VisionZip,
        "divprune": DivPrune,
        "cdpruner": CDPruner,
        "sparsevlm": SparseVLM,
        "oracle": Oracle,
    }
)
"""In the order in which tables show them."""

__all__ = [
    "METHODS",
    "AnyMethod",
    "CDPruner",
    "DivPrune",
    "FastV",
    "GridPooling",
    "KeepAll",
    "Method",
    "Oracle",
    "PyramidDrop",
    "RandomTokens",
    "SparseVLM",
    "ToMe",
    "UniformGrid",
    "VisionZip",
    "build",
    "proposals",
    "read_method",
]


def build(name: str, **options: Any) -> Method:
    """The method of that name; an option it does not have is an error.

    >>> build("tome", rounds=2)
    ToMe(name='tome', rounds=2)
    """
    return load_config(find(name), {"name": name, **options})


def read_method(text: str) -> Method:
    """A method from its name and options, as the command line writes them.

    >>> read_method("tome:rounds=8")
    ToMe(name='tome', rounds=8)
    """
    name, _, listed = text.partition(":")
    options = {}
    for option in filter(None, listed.split(",")):
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"method: got {text!r}, expected NAME or NAME:OPTION=VALUE,...")
        options[key.strip()] = parse_value(value)
    known = [key for key in find(name.strip()).model_fields if key != "name"]
    for key in options:
        if key not in known:
            raise InputError(
                f"method {text!r}: {name.strip()} has no option {key!r}{did_you_mean(key, known)} "
                f"(options: {', '.join(known) or 'none'})"
            )
    return build(name.strip(), **options)


def find(name: str) -> type[Method]:
    """The class of that name."""
    if name not in METHODS:
        raise InputError(
            f"got method {name!r}, expected one of {', '.join(METHODS)}"
            f"{did_you_mean(name, METHODS)}"
        )
    return METHODS[name]


def proposals(method: str | type[Method], num_trials: int, seed: int = 0) -> list[Method]:
    """Settings to try, the default first, then different ones drawn from `space`.

    As many as asked for, for every method; fewer only where there are no more.

    >>> proposals("visionzip", 2)[0]
    VisionZip(name='visionzip', contextual_ratio=0.15625)
    """
    cls = find(method) if isinstance(method, str) else method
    default = load_config(cls)
    grid = list(itertools.product(*cls.space.values()))
    # Sorted by hash: a draw without replacement that no other method's grid can shift.
    order = sorted(range(math.prod(map(len, cls.space.values()))), key=lambda i: mix(seed, i))
    drawn = [default.replace(dict(zip(cls.space, grid[i], strict=True))) for i in order]
    return [default, *(trial for trial in drawn if trial != default)][:num_trials]
