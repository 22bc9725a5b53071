"""The built wheel holds all that the package needs, and runs without the checkout.

It is unpacked rather than installed: the dependencies are those of the environment of the tests, so
that nothing has to be downloaded; eligo itself is the wheel's.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
        timeout=120,
    )
    (built,) = out.glob("eligo-*.whl")
    return built


def test_models_configs_and_types_are_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = SOURCE / "eligo"
    wanted = [package / "py.typed", *package.glob("configs/**/*.yaml"), *package.rglob("*.py")]
    models = [path for path in package.glob("scenes/models/vlm/*") if path.is_file()]
    assert {"config.json", "tokenizer.json", "README.md"} <= {path.name for path in models}
    assert any(path.suffix == ".safetensors" for path in models)
    assert {path.relative_to(SOURCE).as_posix() for path in [*wanted, *models]} <= names
    assert all(name.startswith(("eligo/", "eligo-")) for name in names)  # no tests, no tools


def test_the_wheel_alone_knows_its_models(wheel: Path, tmp_path: Path) -> None:
    unpacked, elsewhere = tmp_path / "unpacked", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(wheel).extractall(unpacked)

    def python(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    where = Path(python("-c", "import eligo; print(eligo.__file__)").strip())
    assert where.is_relative_to(unpacked)
    found = json.loads(python("-m", "eligo", "info", "--json"))
    models = {model["model"]: model for model in found["models"]}
    assert models["vlm"]["MB"] > 10
    assert models["vlm"]["about"]
    assert {"ray", "search", "tensorboard"} <= {row["extra"] for row in found["extras"]}
