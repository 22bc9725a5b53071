"""Every family checks its files and its monitor before the first step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.scenes.train_vlm import VlmTrainConfig
from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.images import open_image, upright_size
from eligo.patches.config import PatchesTrainConfig
from eligo.pixels.config import PixelsTrainConfig
from eligo.scenes.config import ROOMS, ExportConfig, SceneConfig
from eligo.scenes.export import export_scenes
from eligo.tokens.config import TokensTrainConfig
from eligo.train import Task
from eligo.train.check import DataCheck
from eligo.train.config import SMOKE_BATCH

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def exported(folder: Path, kind: str, scenes: SceneConfig, **changes: Any) -> Path:
    config = ExportConfig(format=kind, scenes=scenes, train=8, validation=2, test=0, **changes)  # pyright: ignore
    export_scenes(config, folder)
    return folder


def problems(task: Task) -> list[str]:
    """The lines of the error of a check."""
    check = DataCheck()
    try:
        task.check(check)
        check.finish()
    except InputError as error:
        return str(error).splitlines()
    return []


def pixels(folder: Path, **changes: Any) -> PixelsTrainConfig:
    data = {"kind": "nyu", "root": str(folder), "classes": str(folder / "classes.txt"),
            "words": str(folder / "tags.jsonl")}  # fmt: skip
    tiny = load_config(PixelsTrainConfig, "pixels/scenes").tiny()
    return tiny.replace({"data": data, "train.batch_size": 2, **changes})


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    return exported(tmp_path / "nyu", "nyu", ROOMS.replace({"height": 48, "width": 64}))


def test_pixels_files_are_checked_first(rooms: Path) -> None:
    assert problems(pixels(rooms).build()) == []
    (rooms / "Depth" / "train_000000.png").unlink()
    label = rooms / "Label" / "train_000001.png"
    Image.fromarray(np.full_like(np.array(Image.open(label)), 99)).save(label)
    image = rooms / "RGB" / "train_000002.jpg"
    image.write_bytes(image.read_bytes()[:500])
    found = problems(pixels(rooms).build())
    assert found[0] == "the data have 3 problems:"
    assert any("Depth/train_000000.png: there is no such image" in line for line in found)
    assert any("train_000001.png: got label 99, expected 1 to 14" in line for line in found)
    assert any("train_000002.jpg: cannot be read" in line for line in found)
    without = problems(pixels(rooms, **{"inputs.depth": "none"}).build())
    assert without[0] == "the data have 2 problems:"


def test_pixels_without_a_label_or_of_another_size_are_refused(rooms: Path) -> None:
    for number in range(4):  # of 8, one of them for validation
        for kind, ending in (("RGB", "jpg"), ("Depth", "png"), ("Label", "png")):
            path = rooms / kind / f"train_{number:06d}.{ending}"
            Image.open(path).resize((96, 64), Image.Resampling.NEAREST).save(path)
    found = problems(pixels(rooms).build())
    assert "got 2 sizes, such as (48, 64) and (64, 96) pixels" in found[0]
    for path in (rooms / "Label").iterdir():
        Image.fromarray(np.zeros_like(np.array(Image.open(path)))).save(path)
    found = problems(pixels(rooms, **{"augment.crop": (48, 64)}).build())
    assert ["got only label 0" in line for line in found] == [False, True, True]


def test_tokens_files_are_checked_first(tmp_path: Path) -> None:
    world = SceneConfig(height=56, width=56)
    folder = exported(tmp_path / "vqa", "vqa", world, questions=2)
    tiny = load_config(TokensTrainConfig, "tokens/default").tiny()
    config = tiny.replace({"data": {"kind": "vqa", "folder": str(folder), "validation": 4}})
    assert problems(config.build()) == []
    path = folder / "v2_mscoco_train2014_annotations.json"
    train = json.loads(path.read_text())
    for answer in train["annotations"][0]["answers"]:
        answer["answer"] = "the"  # normalised to an empty answer
    path.write_text(json.dumps(train))
    image = next((folder / "val2014").iterdir())
    image.write_bytes(image.read_bytes()[:300])
    found = problems(config.build())
    assert len(found) == 1, "a question without an answer is left out, and that is no problem"
    assert f"{image}: cannot be read" in found[0]
    path = folder / "v2_OpenEnded_mscoco_val2014_questions.json"
    held_out = json.loads(path.read_text())
    held_out["questions"][1]["question"] = "is <image> like <image>?"
    path.write_text(json.dumps(held_out))
    with pytest.raises(InputError, match=r"questions\[1\]: question: got 2 <image>"):
        config.build()


def test_patches_files_are_checked_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = SceneConfig(height=56, width=56)
    folder = exported(tmp_path / "captions", "captions", world, captions=2)
    captions = folder / "dataset_scenes.json"
    data = {"kind": "karpathy", "captions": str(captions), "images": str(folder / "images")}
    config = load_config(PatchesTrainConfig, "patches/scenes_open").tiny()
    config = config.replace({"see_steps": 0, "data": data})
    assert problems(config.build()) == []
    images = sorted((folder / "images").iterdir())
    images[0].write_bytes(b"no image")
    assert problems(config.build()) == []
    assert "some are skipped" in caplog.text
    for image in images:
        image.unlink()
    assert "none of 2 validation images can be read" in problems(config.build())[0]
    document = json.loads(captions.read_text())
    for entry in document["images"]:
        entry["split"] = "train"
    captions.write_text(json.dumps(document))
    assert "no image of split 'val', found train" in problems(config.build())[0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PixelsTrainConfig, "pixels/scenes"),
        (PatchesTrainConfig, "patches/scenes_open"),
        (TokensTrainConfig, "tokens/default"),
        (VlmTrainConfig, BENCHMARKS / "scenes" / "vlm_polish.yaml"),
    ],
)
def test_metric_names_equal_the_evaluated_metrics(kind: Any, name: str | Path) -> None:
    config = load_config(kind, name).smoke()
    task = config.build()
    for module in task.modules.values():
        module.eval()
    with torch.no_grad():
        assert set(task.metric_names() or ()) == set(task.evaluate())


def test_smoke_uses_the_files_of_the_user_and_its_own_name(
    rooms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = pixels(rooms, **{"train.total_steps": 1000})
    Path("run.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    command = ["pixels", "train", "run.yaml", "--train.name", "mine", "--smoke", "--json"]
    for _ in range(2):  # the second replaces the first
        assert main(command) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["folder"], found["last_step"], found["best_step"]) == (
            "runs/mine_smoke",
            2,
            2,
        )
    assert [path.name for path in Path("runs").iterdir()] == ["mine_smoke"]
    (rooms / "RGB" / "train_000003.jpg").write_bytes(b"no image")
    assert main(command) == 2
    assert "train_000003.jpg: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("turned", [1, 6])
def test_image_size_equals_that_of_the_opened_image(tmp_path: Path, turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    path = tmp_path / "a.jpg"
    Image.new("RGB", (203, 101)).save(path, exif=exif)
    assert upright_size(path) == open_image(path).size
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InputError) as quick:
        upright_size(path)
    with pytest.raises(InputError) as usual:
        open_image(path)
    assert str(quick.value) == str(usual.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PixelsTrainConfig, "pixels/nyu_s"),
        (PatchesTrainConfig, "patches/f30k_vit224"),
        (TokensTrainConfig, "tokens/llava15"),
    ],
)
def test_smoke_on_files_has_a_small_batch(kind: Any, name: str) -> None:
    config = load_config(kind, name)
    assert config.train.batch_size > SMOKE_BATCH
    assert config.smoke().train.batch_size == SMOKE_BATCH
    if kind is not PatchesTrainConfig:  # which accumulates no gradients
        parts = config.replace({"train.gradient_accumulation": 16}).smoke().train
        assert parts.batch_size % parts.gradient_accumulation == 0
    assert config.replace({"train.batch_size": 2}).smoke().train.batch_size == 2
