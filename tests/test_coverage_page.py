"""docs/coverage.md: named places exist, defaults are as written, command lines parse."""

import functools
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from eligo.cli import main
from eligo.cli.commands import Command
from eligo.config import Config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
FAMILIES = ("tokens", "shots", "patches", "pixels")


def rows(family: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {family}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def places(family: str) -> list[str]:
    """Code in the second column."""
    return [code for row in rows(family) for code in re.findall(r"`([^`]+)`", row[1])]


NAMES = [code for family in FAMILIES for code in places(family) if code.startswith("eligo.")]
COMMANDS = [code for family in FAMILIES for code in places(family) if code.startswith("eligo ")]
FILES = [code for family in FAMILIES for code in places(family) if "/" in code.split()[0]]


def resolve(path: str) -> Any:
    """Import a dotted name; a field of a config gives its default."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if isinstance(found, type) and issubclass(found, Config) and name in found.model_fields:
                found = found.model_fields[name].get_default(call_default_factory=True)
            else:
                found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_names_a_place_and_says_whether_it_is_the_same(family: str):
    for row in rows(family):
        assert len(row) == 3, row
        assert "`" in row[1] or "](" in row[1], row
        assert row[2].startswith(("same", "differs: ", "ours: ")), row


def test_kinds_of_places_are_all_checked():
    known = {*NAMES, *COMMANDS, *FILES, "compat=True"}
    assert [code for family in FAMILIES for code in places(family) if code not in known] == []
    assert len(NAMES) > 60
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("code", NAMES)
def test_names_exist_and_defaults_are_as_written(code: str):
    path, _, written = code.partition(" = ")
    found = resolve(path)
    if written:
        assert str(found) == written


@pytest.mark.parametrize("code", COMMANDS)
def test_commands_parse(code: str, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    load = Command.load

    def parse_only(command: Command) -> Any:
        return functools.wraps(load(command))(lambda *args, **kwargs: None)

    monkeypatch.setattr(Command, "load", parse_only)
    assert main(shlex.split(code)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("code", FILES)
def test_files_exist(code: str):
    assert (ROOT / code).is_file() or (ROOT / "src" / "eligo" / code).is_file()


def test_a_wrong_default_or_name_is_found():
    assert resolve("eligo.shots.PointerSelectorV1Config.K") == 32
    with pytest.raises(AttributeError):
        resolve("eligo.shots.config.PointerSelectorV1Config.k")
    with pytest.raises(AttributeError):
        resolve("eligo.shots.NoSuchSelector")
