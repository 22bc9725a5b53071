"""Documents: Python examples run, links resolve, commands and their flags exist."""

import functools
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from eligo.cli import main, run_script
from eligo.cli.commands import COMMANDS, Command
from eligo.pretrained.load import CARD, SHIPPED
from shell_blocks import name_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *SHIPPED.glob(f"*/{CARD}")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HUB_MODEL = "llava-hf/llava-1.5-7b-hf"


def fences(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def blocks(path: Path, language: str) -> list[str]:
    return [code for found, code in fences(path) if found == language]


WITH_PYTHON = [path for path in DOCUMENTS if blocks(path, "python")]


def commands(path: Path) -> list[list[str]]:
    """Command lines in `sh` blocks, without comments; a backslash continues a line."""
    text = "\n".join(blocks(path, "sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def test_documents_are_found():
    names = {name_of(path) for path in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/vlm/README.md"} <= names
    assert ROOT / "README.md" in WITH_PYTHON


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_examples_run(path: Path, tmp_path, monkeypatch, capsys):
    """A `text` block after a `python` block is its output."""
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((64, 48), 50).convert("RGB").save("photo.jpg")
    namespace: dict = {"__name__": "__example__"}  # blocks of a page share their variables
    found = fences(path)
    for number, (language, code) in enumerate(found):
        if language != "python":
            continue
        code = code.replace(HUB_MODEL, str(SHIPPED / "vlm"))
        capsys.readouterr()
        exec(compile(code, f"{path.name}, block {number}", "exec"), namespace)
        printed = capsys.readouterr().out
        if number + 1 < len(found) and found[number + 1][0] == "text":
            assert printed == found[number + 1][1]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_resolve(path: Path):
    for target in re.findall(r"\]\(([^)#\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def heading_anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_anchors_exist(path: Path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text("utf-8")):
        page = path if not target else path.parent / target
        if "://" not in target:
            assert anchor in heading_anchors(page), f"{target}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_parse(path: Path, monkeypatch, tmp_path, capsys):
    """Every command line is parsed with all its flags, without running it."""
    monkeypatch.chdir(tmp_path)
    load = Command.load

    def parse_only(function):
        return functools.wraps(function)(lambda *args, **kwargs: None)

    monkeypatch.setattr(Command, "load", lambda self: parse_only(load(self)))
    for words in commands(path):
        words = [re.sub(r"[\[\]]", "", word) for word in words if word != "..."]
        if words[0] == "eligo":
            found = main(words[1:])
        elif words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
            module = import_module(words[2])
            run = getattr(module, "run", None)
            found = 0 if run is None else run_script(parse_only(run), words[3:])
        elif words[0] == "make":
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            found = int(words[1] not in targets)
        else:
            continue
        output = capsys.readouterr().err
        missing = re.search(r"neither a file nor|no such config file", output)
        assert found == 0 or missing, f"{shlex.join(words)}\n{output}"


def test_every_command_is_documented():
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert [name for name in COMMANDS if f"eligo {name}" not in text] == []


def figures(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d+", text))


def compared() -> list[str]:
    """Rows of the comparison that have a result."""
    lines = (ROOT / "docs" / "does_it_help.md").read_text("utf-8").splitlines()
    return [line for line in lines if re.search(r"\| (won|level|lost) \|$", line)]


def test_the_comparison_has_wins_and_losses():
    assert {line.split("|")[-2].strip() for line in compared()} == {"won", "level", "lost"}


@pytest.mark.parametrize("line", compared(), ids=lambda line: line.split("|")[1].strip())
def test_figures_are_those_of_the_linked_page_and_the_result_follows(line: str):
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    (target,) = re.findall(r"\]\(([^)#]+)", cells[0])
    page = (ROOT / "docs" / target).read_text("utf-8")
    assert figures(" ".join(cells[2:6])) - figures(page) == set()
    low, high = map(float, re.findall(r"\((-?[\d.]+) to (-?[\d.]+)\)$", cells[5])[0])
    assert cells[6] == ("won" if low > 0 else "lost" if high < 0 else "level")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1200


def test_figures_of_the_readme_are_those_of_the_linked_pages():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and figures(line)]
    assert rows
    for row in rows:
        targets = re.findall(r"\]\((docs/[^)#]+)", row)
        pages = "".join((ROOT / target).read_text("utf-8") for target in targets)
        assert figures(row) - figures(pages) == set(), row
