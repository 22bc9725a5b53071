"""`predict` with unusual input: unknown words, other sizes, implausible depth."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import PixelsTrainConfig, Segmenter, predict, train_model
from eligo.pixels.config import InputsConfig
from eligo.pixels.data.pictures import normalise_metres
from eligo.pixels.inference.predict import segment
from eligo.scenes.config import ROOMS
from eligo.scenes.dataset import SceneDataset

TINY = load_config(PixelsTrainConfig, "pixels/scenes").smoke()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return train_model(TINY.replace({"train.out": out, "train.total_steps": 1})).folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def stored(path: Path, values: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values).save(path)
    return path


# ------------------------------------------------------------------ words and images


def test_words_as_strings_and_lists(run: Path, image: Path):
    model = Segmenter.from_pretrained(run)
    for tags in ("wall, floor,", ["wall", " floor "], ("wall", "", "floor")):
        assert predict(image, tags=tags, model=model).words == ("wall", "floor")
    for tags in (None, "", [""], " , "):
        assert predict(image, tags=tags, model=model).words == ()
    assert predict(image, captions="a ball", model=model).words == ("a ball",)
    assert predict(image, captions=["a ball", ""], model=model).words == ("a ball",)


def test_output_folder_with_undecodable_name(run: Path, image: Path, tmp_path: Path):
    out = tmp_path / "caf\udce9"
    for tags in ("wall", "floor"):
        predict(image, tags=tags, model=run).save(out)
    result = json.loads((out / "result.json").read_text("utf-8"))
    assert result["files"][0].endswith("caf\\xe9/label.png")
    assert [file.name for file in (out / "tags").iterdir()] == ["00_floor.png"]


def test_image_in_memory_equals_its_file(run: Path, image: Path):
    model = Segmenter.from_pretrained(run)
    with Image.open(image) as opened:
        found = predict(opened, model=model)
    assert torch.equal(found.confidence, predict(str(image), model=model).confidence)
    sideways = Image.new("RGB", (64, 40))
    sideways.getexif()[0x0112] = 6  # rotated by EXIF
    assert predict(sideways, model=model).labels.shape == (64, 40)
    with pytest.raises(InputError, match=r"image: got 31 x 40 pixels"):
        predict(Image.new("RGB", (40, 31)), model=model)
    depth = stored(image.with_name("d.png"), np.ones((48, 60), dtype=np.uint16))
    with pytest.raises(InputError, match=r"image\.png has 48 x 64"):
        predict(image, depth, model=model)


def test_error_for_unknown_words_lists_the_vocabulary(run: Path, image: Path):
    with pytest.raises(InputError) as caught:
        predict(image, tags="desk,chair,lamp", model=run)
    message = str(caught.value)
    assert "'desk' is not in its vocabulary" in message
    assert "wall, floor, ball, box" in message
    assert "did you mean" not in message  # nonce words are never suggested
    assert "eligo pixels convert" in message
    with pytest.raises(InputError, match=r"did you mean ring\?"):
        predict(image, tags="wring", model=run)
    with pytest.raises(InputError, match=r"did you mean striped\?"):
        predict(image, tags="stripped ball", model=run)


def test_help_explains_tags(capsys):
    assert main(["pixels", "predict", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Name everything that is visible" in shown
    assert "generated rooms only" in shown
    about = shown.split("Require a model with these settings;", 1)[1]
    assert about.index("--sam_decoder_use_cosine") < 200  # in its own section


# ------------------------------------------------------------------ sizes


def test_another_size_is_logged(run: Path, image: Path, caplog: pytest.LogCaptureFixture):
    model = Segmenter.from_pretrained(run)
    assert model.config.image_size == (48, 64)
    predict(image, model=model)
    assert not caplog.messages
    large = image.with_name("large.png")
    Image.open(image).resize((320, 240)).save(large)
    found = predict(large, model=model)
    (message,) = caplog.messages
    assert "large.png: got 240 x 320 pixels" in message
    assert "--size 48 64" in message
    caplog.clear()
    resized = predict(large, model=model, size=(48, 64))
    assert not caplog.messages
    assert resized.labels.shape == found.labels.shape == (240, 320)
    assert not torch.equal(resized.confidence, found.confidence)
    with pytest.raises(InputError, match=r"size: got 16 x 64"):
        predict(large, model=model, size=(16, 64))


def test_shipped_model_needs_its_training_size(tmp_path: Path):
    """Rooms rendered larger: most objects are missed without `size`, and found with it."""
    model = Segmenter.from_pretrained()
    assert model.config.image_size == (96, 128)
    right: dict[str, list[float]] = {"small": [], "large": [], "resized": []}
    for name, times, size in (("small", 1, None), ("large", 4, None), ("resized", 4, (96, 128))):
        world = ROOMS.replace({"height": 96 * times, "width": 128 * times})
        for item in SceneDataset(world, "test", 4, num_questions=0, num_captions=0):
            z = normalise_metres(item.depth)[None]
            depth = (z, torch.ones_like(z, dtype=torch.bool))
            found = segment(model, item.rgb, depth, tags=item.tags, size=size)
            things = item.labels > 1
            right[name].append(float((found.labels == item.labels)[things].float().mean()))
    small, large, resized = (float(np.mean(values)) for values in right.values())
    assert large < small - 0.2
    assert resized > small - 0.1


def test_size_on_the_command_line(run: Path, image: Path, tmp_path: Path):
    large = image.with_name("large.png")
    Image.open(image).resize((320, 240)).save(large)
    arguments = ["--image", large, "--out", tmp_path / "o", "--model", run, "--size", 48, 64]
    assert main(["pixels", "predict", *map(str, arguments)]) == 0
    assert Image.open(tmp_path / "o" / "label.png").size == (320, 240)


# ------------------------------------------------------------------ depth


@pytest.mark.parametrize(
    ("name", "values", "inputs", "expected"),
    [
        ("d.npy", np.full((48, 64), 2.5, dtype=np.float32), {}, "--depth_scale 1"),
        ("d.png", np.full((48, 64), 200, dtype=np.uint8), {}, "--depth_format png8"),
        ("d.png", np.full((48, 64), 20000, dtype=np.uint16), {}, "--depth_scale"),
        ("d.png", np.full((48, 64), 2500, dtype=np.uint16), {}, None),
        ("d.npy", np.full((48, 64), 2.5, dtype=np.float32), {"depth_scale": 1.0}, None),
        ("d.png", np.full((48, 64), 200, dtype=np.uint8), {"depth": "png8"}, None),
        ("d.png", np.zeros((48, 64), dtype=np.uint16), {}, None),
    ],
)
def test_implausible_depth_is_logged(
    run: Path, image: Path, caplog: pytest.LogCaptureFixture, name, values, inputs, expected
):
    model = Segmenter.from_pretrained(run)
    depth = stored(image.with_name(name), values)
    predict(image, depth, model=model, inputs=model.config.inputs.replace(inputs))
    messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    if expected is None:
        assert not messages
    else:
        assert expected in " ".join(messages)
        assert name in " ".join(messages)


def test_a_scale_without_effect_is_refused(run: Path, image: Path, tmp_path: Path, capsys):
    depth = stored(image.with_name("d.png"), np.full((48, 64), 200, dtype=np.uint8))
    words = ["--image", image, "--depth", depth, "--out", tmp_path / "o", "--model", run]
    words += ["--depth_format", "png8", "--depth_scale", "25.5"]
    assert main(["pixels", "predict", *map(str, words)]) == 2
    assert "--depth_scale: has no effect here (inputs.depth is png8)" in capsys.readouterr().err


# ------------------------------------------------------------------ images and depth in memory


def test_image_and_depth_in_every_form_agree(run: Path, image: Path):
    values = np.random.default_rng(1).integers(500, 4000, (48, 64)).astype(np.uint16)
    depth = stored(image.with_name("depth.png"), values)
    model = Segmenter.from_pretrained(run)
    expected = predict(image, depth, "wall, floor", model=model)
    pixels = np.array(Image.open(image))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    metres = InputsConfig(depth_scale=1)
    for photo in (str(image), Image.open(image), pixels, tensor):
        for given, inputs in (
            (Image.open(depth), None),
            (values, None),
            (torch.from_numpy(values.astype(np.int32)), None),
            (values.astype(np.float64), None),
            (stored(image.with_name("depth.npy"), values), None),
            (values.astype(np.float32) / np.float32(1000), metres),
        ):
            found = predict(photo, given, ["wall", "floor"], model=model, inputs=inputs)
            assert found.used_depth
            if inputs is None:
                assert torch.equal(found.confidence, expected.confidence)
            torch.testing.assert_close(found.confidence, expected.confidence)
            assert found.selection is not None


def test_depth_of_another_shape_is_refused(run: Path, image: Path):
    model = Segmenter.from_pretrained(run)
    pixels = np.array(Image.open(image))
    with pytest.raises(InputError, match=r"depth: got 40 x 64 pixels, but image has 48 x 64"):
        predict(pixels, np.ones((40, 64), np.float32), model=model)
    with pytest.raises(InputError, match=r"depth: got shape \(1, 48, 64\), expected \(height, w"):
        predict(pixels, torch.ones(1, 48, 64), model=model)
    with pytest.raises(InputError, match=r"image: got the shape"):
        predict(np.ones((48, 64, 2), np.uint8), model=model)


def test_depth_of_a_reduced_array(run: Path, monkeypatch: pytest.MonkeyPatch):
    """A large array and its depth are reduced like a file."""
    monkeypatch.setattr("eligo.images.MOST_PIXELS", 40 * 60)
    pixels = np.zeros((80, 120, 3), np.uint8)
    for photo in (pixels, torch.from_numpy(pixels).permute(2, 0, 1)):
        found = predict(photo, np.ones((80, 120), np.float32), model=run)
        assert found.labels.shape == (40, 60)
