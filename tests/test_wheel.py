"""The built wheel contains all that the package needs, and runs without the checkout.

It is unpacked rather than installed: the dependencies are those of the environment of the tests, so
that nothing has to be downloaded; eligo itself is the wheel's.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from eligo.scenes import SceneConfig, SceneDataset
from limits import PROCESS_SECONDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed (extra: test)")
    out = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(ROOT), "--wheel-dir", str(out), *options],
        check=True,
        capture_output=True,
        timeout=PROCESS_SECONDS,
    )
    (built,) = out.glob("eligo-*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(out)
    return out


@pytest.fixture
def python(unpacked: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs Python in an empty folder with eligo from the wheel; returns its output."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_wheel_contains_the_package_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = SOURCE / "eligo"
    expected = [
        path.relative_to(SOURCE).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]
    assert [name for name in expected if name not in names] == []
    assert all(name.startswith(("eligo/", "eligo-")) for name in names)  # no tests or tools
    assert wheel.stat().st_size < 45e6  # 40 MB of models, plus the code


@pytest.mark.parametrize(
    "pattern",
    [
        "py.typed",
        "*/__init__.pyi",
        "configs/*/*.yaml",
        "models/vlm/README.md",
        "models/vlm/*.safetensors",
        "models/vlm/tokenizer.json",
        "explorer/page/*.html",
        "explorer/page/*.css",
        "explorer/page/*.js",
    ],
)
def test_data_files_are_included(unpacked: Path, pattern: str):
    found = sorted(path.relative_to(unpacked) for path in unpacked.glob(f"eligo/{pattern}"))
    assert found
    assert found == sorted(path.relative_to(SOURCE) for path in SOURCE.glob(f"eligo/{pattern}"))


def test_entry_points_are_found(unpacked: Path):
    (entries,) = unpacked.glob("eligo-*.dist-info/entry_points.txt")
    text = entries.read_text(encoding="utf-8")
    assert "[console_scripts]\neligo = eligo.cli:main" in text
    assert "[lmms_eval.models]\neligo = eligo.tokens.inference.lmms_eval:manifest" in text


def test_shipped_models_are_found_in_the_wheel(python: Callable[..., str], unpacked: Path):
    where = Path(python("-c", "import eligo; print(eligo.__file__)").strip())
    assert where.is_relative_to(unpacked)
    found = json.loads(python("-m", "eligo", "info", "--json"))
    models = {model["model"]: model for model in found["models"]}
    assert models["vlm"]["MB"] > 10
    assert models["vlm"]["about"]
    assert {"ray", "search", "tensorboard"} <= {row["extra"] for row in found["extras"]}


def test_demo_runs_from_the_wheel(python: Callable[..., str], tmp_path: Path):
    """On one user question, with model and page from the wheel."""
    from eligo.report.pictures import rgb_picture

    scene = SceneDataset(SceneConfig(), "test", 1)[0]
    question = scene.questions[0]
    rgb_picture(scene.rgb).save(tmp_path / "scene.png")
    (tmp_path / "questions.txt").write_text(f"scene.png\t{question.question}\t{question.answer}\n")
    python("-m", "eligo", "demo", "--questions", "questions.txt", "--quick", "--out", "seen")
    page = (tmp_path / "seen" / "index.html").read_text(encoding="utf-8")
    assert question.question in page
    assert (tmp_path / "seen" / "results.json").is_file()
