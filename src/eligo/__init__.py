"""eligo: learned selection in vision-language models.

Score candidates against a query, keep an exact budget, fold or drop the rest; at four scales:
examples (`demos`), image patches (`patches`), vision tokens (`tokens`), words (`pixels`).

Names are imported on first use, so that `import eligo` and `eligo --help` stay light.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo import (
        config,
        demos,
        errors,
        losses,
        nn,
        ops,
        patches,
        pixels,
        report,
        scenes,
        selection,
        tokens,
        train,
    )
    from eligo.selection import Selection

__version__ = "0.1.0"

__all__ = [
    "Selection",
    "config",
    "demos",
    "errors",
    "losses",
    "nn",
    "ops",
    "patches",
    "pixels",
    "report",
    "scenes",
    "selection",
    "tokens",
    "train",
]
_HOME = {"Selection": "selection"}

__getattr__, __dir__ = lazy_names(__name__, _HOME, [name for name in __all__ if name not in _HOME])
