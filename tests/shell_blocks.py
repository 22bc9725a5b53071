"""Commands of the documents and of the shipped configs, run as printed on generated files.

Tests of each family run the pages about it, with flags that make the work shorter.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from eligo.cli import main

ROOT = Path(__file__).parents[1]
_CONFIGS, _MODELS = "src/eligo/configs", "src/eligo/models"
PAGES = {
    "tokens": ["docs/tokens", "docs/photos.md"],
    "patches": ["docs/patches"],
    "pixels": ["docs/pixels"],
    "shots": ["docs/shots"],
    "others": [
        "README.md", "docs/configs.md", "docs/demo.md", "docs/explorer.md",
        "docs/shipped_models.md", f"{_CONFIGS}/scenes",
    ],
}  # fmt: skip
"""How the paths of a family's documents start."""
for family in ("tokens", "patches", "pixels", "shots"):
    PAGES[family] += [f"{_CONFIGS}/{family}", f"{_MODELS}/{family}"]
PAGES["tokens"].append(f"{_MODELS}/vlm")
SKIPPED = {
    "make": "sets up an environment and runs tests",
    ".ci/run": "runs all tests",
    "python3 -m venv": "sets up an environment",
    "/tmp/newer/bin/": "runs in that environment",
    "pip install": "downloads",
    "lmms-eval": "another program, which downloads; tests/tokens/test_lmms_eval.py runs our part",
    "python examples/": "run by tests/examples",
    "python -m benchmarks.": "run by tests/benchmarks",
    "eligo explore --live": "a server, which does not end; run by tests/explorer",
}
"""What is not run: how the line starts, and why."""


def documents() -> list[Path]:
    """Documents, cards of the shipped models, and shipped configs."""
    folders = (ROOT.glob("*.md"), ROOT.glob("docs/*.md"))
    shipped = (ROOT.glob(f"{_MODELS}/*/README.md"), ROOT.glob(f"{_CONFIGS}/*/*.yaml"))
    return sorted(path for found in (*folders, *shipped) for path in found)


def lines_of(path: Path) -> list[str]:
    """Command lines of the `sh` blocks of a page, or the one in the header of a config."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return re.findall(r"\A# (eligo .+?)(?:: .*)?$", text, re.MULTILINE)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def to_run(path: Path) -> list[str]:
    """Command lines of a document, without those that are skipped."""
    return [line for line in lines_of(path) if not line.startswith(tuple(SKIPPED))]


def pages(family: str) -> list[Path]:
    """The documents of a family that have commands to run (a config: unless a page has it too)."""
    starts = tuple(str(ROOT / start) for start in PAGES[family])
    found = [path for path in documents() if str(path).startswith(starts) and to_run(path)]
    printed = "\n".join(f"{line} " for path in found if path.suffix == ".md" for line in to_run(path))
    return [path for path in found if path.suffix == ".md" or f"{to_run(path)[0]} " not in printed]


def name_of(path: Path) -> str:
    """A name of a document for test ids."""
    return str(path.relative_to(ROOT)).removeprefix("src/eligo/")


def run_lines(
    folder: Path, lines: Sequence[str], shorter: Mapping[str, str], replaced: Mapping[str, str] = {}
) -> list[str]:
    """Run command lines in a folder, in order, and return what each printed.

    `shorter` has flags to add to a command, by how it starts (the longest start counts); `replaced`
    has words to replace, where flags cannot change a config.
    """
    printed = []
    for line in lines:
        start = max((key for key in shorter if line.startswith(f"eligo {key}")), default="", key=len)
        words = [*shlex.split(line), *shlex.split(shorter.get(start, ""))]
        with chdir(folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = main([replaced.get(word, word) for word in words[1:]])
        assert code == 0, f"{shlex.join(words)}\n{err.getvalue()}"
        printed.append(out.getvalue())
        import os, time; os.write(2, f"{time.perf_counter():.1f} {shlex.join(words)[:150]}\n".encode())
    return printed
