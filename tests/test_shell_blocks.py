"""Every command of the documents belongs to a test that runs it; the pages of no family."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from eligo.cli.demo import patches, pixels, shots, tokens
from eligo.pretrained.load import SHIPPED
from pretrained_models import whole_model
from shell_blocks import (
    PAGES,
    ROOT,
    SKIPPED,
    documents,
    lines_of,
    name_of,
    pages,
    run_lines,
    to_run,
    write_configs,
)

SHORTER = {
    "demo": "--quick",
    "scenes export": "--train 2 --validation 2 --test 2",
    "tokens sweep": "--questions 1 --blind_scenes 8",
    "shots teach": "--shots 2 --beam 2 --sampler.num_candidates 4",
    "shots train": "--train.num_epochs 1 --train.min_steps 2",
}
MY_RUN = """
extends: patches/scenes_open
train: {name: my_run, total_steps: 2, batch_size: 4, precision: "no"}
see_steps: 0
data: {train_images: 8, validation_images: 4}
search: {trials: 1, space: {optimizer.lr: [0.001]}}
"""
PREPARED = """
eligo scenes export jsonl --out rooms
eligo tokens predict --image photo.jpg --question "is it red?" --method none --out RUN
eligo shots embed --data examples.jsonl
eligo shots teach
eligo shots train
"""


def test_every_page_is_run_by_one_test():
    starts = [str(ROOT / start) for family in PAGES.values() for start in family]
    for path in documents():
        if to_run(path):
            assert sum(str(path).startswith(start) for start in starts) == 1, path


def test_only_eligo_is_run():
    lines = [line for path in documents() for line in to_run(path)]
    assert [line for line in lines if not line.startswith("eligo ")] == []


@pytest.mark.parametrize("start", SKIPPED)
def test_skipped_commands_are_in_the_documents(start):
    assert any(line.startswith(start) for path in documents() for line in lines_of(path))


def test_every_study_in_the_documents_is_run_by_a_test():
    lines = [line for path in documents() for line in lines_of(path)]
    names = {line.split()[2] for line in lines if line.startswith("python -m benchmarks.")}
    names.remove("benchmarks.tokens.pictures")  # draws committed results, which tests do not read
    tests = [path.read_text("utf-8") for path in (ROOT / "tests" / "benchmarks").glob("*.py")]
    imported = {
        f"{package}.{name}"
        for text in tests
        for package, given in re.findall(r"^from (benchmarks[\w.]*) import (.+)$", text, re.M)
        for name in re.findall(r"\w+", given)
    }
    modules = {name.rpartition(".")[0] for name in imported}
    assert names - imported - modules == set()


@pytest.mark.parametrize(
    "path", [path for path in documents() if path.suffix == ".yaml"], ids=name_of
)
def test_every_config_starts_with_its_command(path):
    (line,) = lines_of(path)
    family, name = path.parent.name, path.stem
    assert line.startswith((f"eligo {family} ", f"eligo search {family}/{name}"))
    assert name in (line + " default").split() or f"search {family}/{name}" in line


@pytest.fixture(scope="module", autouse=True)
def small_demo() -> Iterator[None]:
    sizes = {
        tokens: {"_QUESTIONS": 12, "_BLIND_SCENES": 40},
        patches: {"_IMAGES": 32},
        pixels: {"_ROOMS": 8},
        shots: {"_LEXICONS": 1, "_QUERIES": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, counts in sizes.items():
            for name, count in {**counts, "_RECORDS": 1}.items():
                patch.setattr(module, name, count)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages presume: images, questions, runs, models, a config."""
    folder = tmp_path_factory.mktemp("files")
    lines = [{"id": f"e{n}", "input": f"what is {n}?", "output": f"number {n}"} for n in range(8)]
    (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rooms, *prepared = PREPARED.strip().splitlines()
    run_lines(folder, [rooms], SHORTER)
    (folder / "photos").mkdir()
    for name in ("photo.jpg", "rgb.png", "photos/a.jpg"):
        shutil.copy(folder / "rooms/images/test_000000.jpg", folder / name)
    shutil.copy(folder / "rooms/depth/test_000000.png", folder / "depth.png")
    run_lines(folder, prepared, SHORTER)
    (folder / "questions.txt").write_text("a.jpg\tis there any red ball?\n")
    (folder / "my_run.yaml").write_text(MY_RUN)
    (folder / "LLAVA_FOLDER").symlink_to(SHIPPED / "vlm")
    asked = {"image": "photo.jpg", "question": "is there any red ball?", "answer": "yes"}
    (folder / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    shutil.copytree(whole_model(folder, "clip"), folder / "openai" / "clip-vit-base-patch32")
    for name in ("patches", "pixels", "shots"):
        model = SHIPPED / ("shots_v1" if name == "shots" else name)
        (folder / "runs" / f"{name.upper()}_RUN").symlink_to(model)
    return folder


@pytest.mark.parametrize("path", pages("others"), ids=name_of)
def test_commands_run(path, files, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(files, folder, symlinks=True)
    write_configs(path, folder)
    run_lines(folder, to_run(path), SHORTER)
