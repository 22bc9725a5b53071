"""Source distribution, cleaning, and version bounds of requirements."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def test_source_distribution_contains_all_test_files():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(
        pattern.startswith("/") for pattern in patterns
    )  # otherwise they match in any subfolder
    included = {pattern[1:] for pattern in patterns}
    documents = {path.name for path in ROOT.glob("*.md")}
    folders = {"src", "tests", "docs", "benchmarks", "examples"}
    assert documents | folders | {"Makefile"} <= included


def test_cleaning_keeps_trained_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    cleaned = re.search(r"^clean:\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert cleaned is not None
    assert "runs" not in cleaned[1].split()


def requirements() -> dict[str, str]:
    """Version bounds of all requirements and extras in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    every = [*project["dependencies"], *(one for extra in extras for one in extra)]
    parsed = [Requirement(one) for one in every]
    return {one.name: str(one.specifier) for one in parsed if one.name != "eligo"}


def test_every_requirement_has_a_tested_lowest_version():
    bounds = requirements()
    command = [sys.executable, ".ci/lowest.py"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lowest = dict(line.split("==") for line in completed.stdout.splitlines())
    assert set(lowest) == set(bounds) - {"torch"}
    assert all(f">={version}" in bounds[name].split(",") for name, version in lowest.items())


def test_hooked_packages_have_an_upper_bound():
    bounds = requirements()
    assert all("<" in bounds[name] for name in ("torch", "transformers", "triton", "tyro"))


def test_make_installs_a_supported_torch():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"'torch([^']+)'", makefile)
    assert [SpecifierSet(one) for one in found] == [SpecifierSet(requirements()["torch"])]
