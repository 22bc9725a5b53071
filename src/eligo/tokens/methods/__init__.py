"""Training-free methods by name: `build("tome", rounds=2)`."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from eligo.config import load_config
from eligo.config.problems import did_you_mean
from eligo.config.yaml import parse_value
from eligo.errors import InputError
from eligo.tokens.methods.base import Method
from eligo.tokens.methods.cdpruner import CDPruner
from eligo.tokens.methods.dart import DART
from eligo.tokens.methods.divprune import DivPrune
from eligo.tokens.methods.evs import EVS
from eligo.tokens.methods.fastv import FastV
from eligo.tokens.methods.grid import GridPooling, UniformGrid
from eligo.tokens.methods.hiprune import HiPrune
from eligo.tokens.methods.holov import HoloV
from eligo.tokens.methods.keep_all import KeepAll
from eligo.tokens.methods.mmr import MMR
from eligo.tokens.methods.mmtok import MMTok
from eligo.tokens.methods.oracle import Oracle
from eligo.tokens.methods.prumerge import PruMerge
from eligo.tokens.methods.pyramiddrop import PyramidDrop
from eligo.tokens.methods.random import RandomTokens
from eligo.tokens.methods.sparsevlm import SparseVLM
from eligo.tokens.methods.tome import ToMe
from eligo.tokens.methods.vidcom2 import VidCom2
from eligo.tokens.methods.visionzip import VisionZip
from eligo.tokens.methods.vispruner import VisPruner
from eligo.train.rng import mix

METHODS: Mapping[str, type[Method]] = MappingProxyType({
    "none": KeepAll, "random": RandomTokens, "uniform": UniformGrid, "pool": GridPooling,
    "tome": ToMe, "fastv": FastV, "pyramiddrop": PyramidDrop, "visionzip": VisionZip,
    "hiprune": HiPrune, "vispruner": VisPruner, "holov": HoloV, "prumerge": PruMerge,
    "divprune": DivPrune, "dart": DART, "mmtok": MMTok, "cdpruner": CDPruner, "mmr": MMR,
    "sparsevlm": SparseVLM, "evs": EVS, "vidcom2": VidCom2, "oracle": Oracle,
})  # fmt: skip
"""In the order in which tables show them."""
VIDEO_METHODS = ("evs", "vidcom2")
"""Those that compare frames; they are left out of comparisons on images."""

__all__ = [
    "DART", "EVS", "METHODS", "MMR", "VIDEO_METHODS", "CDPruner", "DivPrune", "FastV",
    "GridPooling", "HiPrune", "HoloV", "KeepAll", "MMTok", "Method", "Oracle", "PruMerge",
    "PyramidDrop", "RandomTokens", "SparseVLM", "ToMe", "UniformGrid", "VidCom2", "VisPruner",
    "VisionZip", "build", "proposals", "read_method",
]  # fmt: skip


def build(name: str, **options: Any) -> Method:
    """Return the method of that name; unknown options are errors.

    >>> build("tome", rounds=2)
    ToMe(name='tome', rounds=2)
    """
    return load_config(find(name), {"name": name, **options})


def read_method(text: str) -> Method:
    """Parse a method and its options as the command line writes them.

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
    """Return the class of that name."""
    if name not in METHODS:
        raise InputError(
            f"got method {name!r}, expected one of {', '.join(METHODS)}"
            f"{did_you_mean(name, METHODS)}"
        )
    return METHODS[name]


def proposals(method: str | type[Method], num_trials: int, seed: int = 0) -> list[Method]:
    """Return settings to try: the default, then distinct ones drawn from `space`.

    The number is the same for every method; smaller only where `space` has fewer settings.

    >>> proposals("visionzip", 2)[0]
    VisionZip(name='visionzip', contextual_ratio=0.15625)
    """
    cls = find(method) if isinstance(method, str) else method
    default = load_config(cls)
    grid = list(itertools.product(*cls.space.values()))
    # Sorted by hash: a draw without replacement that does not depend on other methods' grids.
    order = sorted(range(len(grid)), key=lambda i: mix(seed, i))
    drawn = [default.replace(dict(zip(cls.space, grid[i], strict=True))) for i in order]
    return [default, *(trial for trial in drawn if trial != default)][:num_trials]
