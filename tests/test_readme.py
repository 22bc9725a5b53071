"""Every Python example in the documents runs, every link leads somewhere, every command exists."""

import re
from pathlib import Path

import pytest

from eligo.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [code for found, code in FENCE.findall(text) if found == language]


WITH_PYTHON = [path for path in DOCUMENTS if blocks(path, "python")]


def test_the_documents_are_found():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {path.name for path in DOCUMENTS}
    assert ROOT / "README.md" in WITH_PYTHON


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.name)
def test_python_examples_run(path: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__example__"}  # the blocks of a page build on one another
    for number, code in enumerate(blocks(path, "python"), 1):
        exec(compile(code, f"{path.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(path: Path):
    for code in blocks(path, "sh"):
        for line in code.splitlines():
            words = line.split()
            if words[:1] == ["eligo"]:
                assert " ".join(words[1:3]) in COMMANDS or words[1] in COMMANDS, line
            if words[:1] == ["make"]:
                targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                assert words[1] in targets, line
