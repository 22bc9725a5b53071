"""What is built and what is cleaned."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_source_distribution_holds_what_the_tests_read():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(pattern.startswith("/") for pattern in patterns)  # else found in any subfolder
    included = {pattern[1:] for pattern in patterns}
    documents = {path.name for path in ROOT.glob("*.md")}
    folders = {"src", "tests", "docs", "benchmarks", "examples"}
    assert documents | folders | {"Makefile"} <= included


def test_cleaning_keeps_trained_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    cleaned = re.search(r"^clean:\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert cleaned is not None
    assert "runs" not in cleaned[1].split()
