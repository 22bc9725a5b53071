"""Names that a package imports on first use: configs and `--help` need no torch."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], rooms: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    `homes` says in which of its modules each name lives; `rooms` are modules that are names
    themselves.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if name in rooms:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*homes, *rooms})

    return find, names
