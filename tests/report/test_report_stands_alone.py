"""The report package knows nothing of the families, nor of the scenes."""

import ast
from pathlib import Path

import eligo.report

SHARED = {f"eligo.{name}" for name in ("config", "errors", "files", "images", "ops", "selection")}
ALLOWED = {"eligo", "eligo.report", *SHARED}  # `eligo` itself: its version


def test_imports():
    for path in Path(eligo.report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name.split(".")[0] == "eligo":
                    assert ".".join(name.split(".")[:2]) in ALLOWED, f"{path.name}: {name}"
