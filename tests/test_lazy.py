"""Names imported on first use: what a package offers, says to type checkers and finds agree."""

import ast
import inspect
from importlib import import_module
from types import ModuleType

import pytest

import eligo

NAMES = ("shots", "patches", "pixels", "scenes", "tokens", "train")
PACKAGES = [import_module(f"eligo.{name}") for name in NAMES]


def written_for_type_checkers(package: ModuleType) -> dict[str, str]:
    """What the package's `if TYPE_CHECKING:` imports: name -> module."""
    tree = ast.parse(inspect.getsource(package))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: str(node.module).removeprefix(f"{package.__name__}.")
        for node in imports
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_is_found_where_it_is_said_to_be(package: ModuleType):
    assert written_for_type_checkers(package) == package._HOME
    assert sorted(package.__all__) == sorted(package._HOME) == dir(package)
    for name, home in package._HOME.items():
        found = getattr(package, name)
        assert found is getattr(import_module(f"{package.__name__}.{home}"), name)


@pytest.mark.parametrize("package", [eligo, *PACKAGES], ids=lambda package: package.__name__)
def test_an_unknown_name_is_an_attribute_error(package: ModuleType):
    with pytest.raises(AttributeError, match=rf"'{package.__name__}' has no attribute 'Selektion'"):
        _ = package.Selektion


def test_the_front_door_leads_to_every_room():
    assert {package.__name__ for package in PACKAGES} <= {f"eligo.{name}" for name in dir(eligo)}
    assert sorted(eligo.__all__) == dir(eligo)
    for name in eligo.__all__:
        assert getattr(eligo, name) is not None
    assert eligo.Selection.__module__ == "eligo.selection"
