"""eligo: learned selection in vision-language models.

Score candidates against a query, keep an exact budget, fold or drop the rest; at four scales:
examples (`demos`), image patches (`patches`), vision tokens (`tokens`), words (`pixels`).

Names are imported on first use, so that `import eligo` and `eligo --help` stay light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {"Selection": "eligo.selection"}
_PACKAGES = (
    "config",
    "demos",
    "errors",
    "losses",
    "nn",
    "ops",
    "patches",
    "report",
    "scenes",
    "selection",
    "tokens",
    "train",
)
__all__ = [*_HOME, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _PACKAGES:
        return import_module(f"eligo.{name}")
    raise AttributeError(f"module 'eligo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
