"""A model folder with any of its files damaged is one line, or it loads as if nothing had been.

Every model that comes with eligo stands for its kind; selectors with their examples and indexes
are made here.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from eligo.demos import PointerSelector
from eligo.demos.data.pool import Pool
from eligo.demos.learned.selector import LearnedSelector
from eligo.demos.models.config import PointerSelectorV0Config
from eligo.demos.selector import load_selector
from eligo.errors import EligoError
from eligo.patches.model import RetrievalModel
from eligo.patches.retrieval.store import IndexFolder
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pretrained import SHIPPED, shipped_models
from eligo.scenes.vlm.model import load_vlm
from eligo.tokens import Plan

LOADERS: dict[str, Callable[[Path], Any]] = {
    "vlm": load_vlm,
    "patches": RetrievalModel.from_pretrained,
    "pixels": Segmenter.from_pretrained,
    "tokens_default": Plan.from_pretrained,
    "demos_v3": PointerSelector.from_pretrained,
}


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(300))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def listed(path: Path) -> None:
    path.write_text("[1, 2]\n")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def strange(path: Path) -> None:
    path.write_text('{"model_type": 3, "format": [], "model": [], "kind": {}, "version": null}\n')


DAMAGE = (remove, empty, truncate, noise, folder, listed, nested, strange)


def assert_one_line_each(whole: Path, load: Callable[[Path], Any], tmp_path: Path) -> None:
    """Damage each file in turn; of weights, every damage has to be noticed."""
    there = tmp_path / "damaged"
    shutil.copytree(whole, there)
    files = [path for path in sorted(there.rglob("*")) if path.is_file() and path.suffix != ".md"]
    for file in files:
        content = file.read_bytes()
        for damage in DAMAGE:
            damage(file)
            what = f"{file.relative_to(there)}: {damage.__name__}"
            try:
                load(there)
                assert file.suffix != ".safetensors", f"{what}: loaded"
            except EligoError as error:
                assert len(str(error).splitlines()) == 1, f"{what}: {error}"
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
            if file.is_dir():
                file.rmdir()
            file.write_bytes(content)
    load(there)


@pytest.mark.parametrize("name", LOADERS)
def test_a_shipped_model(name, tmp_path):
    assert_one_line_each(SHIPPED / name, LOADERS[name], tmp_path)
