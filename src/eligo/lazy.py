"""Names that a package imports on first use, so that configs and `--help` import no torch.

A package lists its public names once, in `__init__.pyi`, where type checkers look for them too:

    from .plan import Plan as Plan
    from . import methods as methods
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from eligo.renamed import new_name


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package (PEP 562), from its stub file."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            new = new_name("name", f"{package}.{name}")
            hint = f"; it is now {new}" if new else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        if homes[name] is None:  # a submodule
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, lambda: sorted(homes), sorted(homes)
