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
    family: [f"docs/{family}", f"{_CONFIGS}/{family}", f"{_MODELS}/{family}"]
    for family in ("tokens", "patches", "pixels", "shots")
}
"""How the paths of a family's documents start."""
PAGES["tokens"] += ["docs/photos.md", "docs/serving.md", f"{_MODELS}/vlm"]
PAGES["others"] = [
    "README.md", "docs/configs.md", "docs/demo.md", "docs/explorer.md", "docs/shipped_models.md",
    f"{_CONFIGS}/scenes",
]  # fmt: skip
SKIPPED = {
    "make": "sets up an environment and runs tests",
    ".ci/run": "runs all tests",
    "python3 -m venv": "sets up an environment",
    "/tmp/newer/bin/": "runs in that environment",
    "pip install": "downloads",
    "ray start": "a server, which does not end",
    "RAY_ADDRESS=": "needs that server; run by tests/shots/test_shots_teach_ray.py",
    "lmms-eval": "another program, which downloads; tests/tokens/test_lmms_eval.py runs our part",
    "python examples/": "run by tests/examples",
    "python -m benchmarks.": "run by tests/benchmarks",
    "eligo explore --live": "a server, which does not end; run by tests/explorer",
    "eligo tokens predict --model FOLDER --video": (
        "needs the video processor of a Qwen model; tests/tokens/test_video_predict.py runs it"
    ),
    "trtexec": "another program, which needs a GPU",
    "eligo pixels export": "runs without shape checks, in tests/pixels/test_pixels_onnx.py",
}
"""What is not run here: how the line starts, and why."""


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


def write_configs(path: Path, folder: Path) -> None:
    """Write the YAML blocks of a page that start with the name of a file."""
    text = path.read_text(encoding="utf-8")
    for name, block in re.findall(r"^```yaml\n# (\w+\.yaml)\n(.*?)^```$", text, re.M | re.S):
        (folder / name).write_text(block)


def pages(family: str) -> list[Path]:
    """The documents of a family with commands to run; of configs, those that no page has."""
    starts = tuple(str(ROOT / start) for start in PAGES[family])
    found = [path for path in documents() if str(path).startswith(starts)]
    configs = [path for path in found if path.suffix == ".yaml"]
    texts = [path for path in found if path not in configs and to_run(path)]
    printed = {line for path in texts for line in to_run(path)}
    return [*texts, *(path for path in configs if not printed.issuperset(to_run(path)))]


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
        start = max(
            (key for key in shorter if line.startswith(f"eligo {key}")), default="", key=len
        )
        words = [*shlex.split(line), *shlex.split(shorter.get(start, ""))]
        with chdir(folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = main([replaced.get(word, word) for word in words[1:]])
        assert code == 0, f"{shlex.join(words)}\n{err.getvalue()}"
        printed.append(out.getvalue())
    return printed
