"""Names imported on first use: the stub, `__all__`, `dir()` and the modules agree."""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import eligo

NAMES = ("shots", "patches", "pixels", "scenes", "tokens", "train")
PACKAGES = [import_module(f"eligo.{name}") for name in NAMES]


def stub_names(package: ModuleType) -> dict[str, str | None]:
    """Imports of the `__init__.pyi` of a package: name -> module."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", [eligo, *PACKAGES], ids=lambda package: package.__name__)
def test_every_name_in_the_stub_is_found(package: ModuleType):
    names = stub_names(package)
    assert sorted(package.__all__) == sorted(names) == dir(package)
    for name, module in names.items():
        found = getattr(package, name)
        if module is None:
            assert found is import_module(f"{package.__name__}.{name}")
        else:
            assert found is getattr(import_module(f"{package.__name__}.{module}"), name)


@pytest.mark.parametrize("package", [eligo, *PACKAGES], ids=lambda package: package.__name__)
def test_unknown_name_is_an_attribute_error(package: ModuleType):
    with pytest.raises(AttributeError, match=rf"'{package.__name__}' has no attribute 'Selektion'"):
        _ = package.Selektion


def test_eligo_lists_every_subpackage():
    assert set(NAMES) <= set(dir(eligo))
    assert eligo.Selection.__module__ == "eligo.selection"
