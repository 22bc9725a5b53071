"""Labels and depth as other tools write them: numbering, units, sizes, colours, sequences."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import ConfigError, InputError
from eligo.pixels import (
    PRESETS,
    SIZES,
    PixelsModel,
    PixelsTrainConfig,
    Segmenter,
    SegmenterConfig,
    predict,
    train_model,
)
from eligo.pixels.config import AugmentConfig, InputsConfig, JsonlDataConfig, TextConfig
from eligo.pixels.data.file_source import FileSource
from eligo.pixels.data.pictures import (
    LabelNumbers,
    check_label_range,
    read_depth,
    read_label,
    read_photo,
)
from eligo.pixels.data.records import read_records

SIZE = (40, 48)
METRES = InputsConfig(depth="metric", depth_scale=1)


@pytest.fixture
def photo(tmp_path: Path):
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(tmp_path / "photo.png")
    return read_photo(tmp_path / "photo.png")


def saved(path: Path, values: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values).save(path)
    return path


def halves(left: int, right: int, dtype: str = "uint8") -> np.ndarray:
    values = np.full(SIZE, left, dtype)
    values[:, 24:] = right
    return values


@pytest.mark.parametrize(
    ("numbers", "stored", "classes"),
    [
        (LabelNumbers(3), (0, 3), (255, 2)),
        (LabelNumbers(3, 0, 255), (0, 255), (0, 255)),
        (LabelNumbers(3, 0, None), (0, 2), (0, 2)),
        (LabelNumbers(3, 7, 0), (9, 0), (2, 255)),
        (LabelNumbers(3, 1000, 65535), (1000, 65535), (0, 255)),
    ],
)
def test_numbers_of_label_files(tmp_path: Path, photo, numbers, stored, classes):
    path = saved(tmp_path / "label.png", halves(*stored, dtype="uint16"))
    found = read_label(path, numbers, photo)
    assert (int(found[0, 0]), int(found[0, -1])) == classes


def test_labels_out_of_range_say_how_to_number_them(tmp_path: Path, photo):
    path = saved(tmp_path / "label.png", halves(1, 3))
    with pytest.raises(InputError, match=r"label 3, expected 0 to 2 .*or 255.*count from 1"):
        read_label(path, LabelNumbers(3, 0, 255), photo)
    path = saved(tmp_path / "float.npy", halves(1, 2, "float32"))
    with pytest.raises(InputError, match=r"got float32 values as labels, expected a whole number"):
        read_label(path, LabelNumbers(3), photo)


def test_labels_from_0_are_noticed_only_where_0_is_ignored(tmp_path: Path, caplog):
    paths = [saved(tmp_path / "label.png", halves(0, 2))]
    check_label_range(paths, LabelNumbers(3, 0, 255))
    assert not caplog.records
    check_label_range(paths, LabelNumbers(3))
    assert "--data.label_offset 0 --data.ignore_index 255" in caplog.text


def test_the_ignored_number_is_not_the_first_class():
    config = {"train": "t.jsonl", "classes": "c.txt", "label_offset": 0}
    with pytest.raises(ConfigError, match=r"ignore_index: got 0, which is the first class"):
        load_config(JsonlDataConfig, config)
    load_config(JsonlDataConfig, config | {"ignore_index": None})


@pytest.mark.parametrize("depth", ["png8", "metric"])
def test_colours_are_not_depth(tmp_path: Path, photo, depth: str):
    inputs = InputsConfig(depth=depth)  # pyright: ignore[reportArgumentType]
    colours = np.zeros((*SIZE, 3), np.uint8)
    colours[..., 0], colours[..., 1] = halves(10, 250), halves(200, 20)
    with pytest.raises(InputError, match=r"3 different channels, as of a colour map, in depth"):
        read_depth(saved(tmp_path / "jet.png", colours), inputs, photo)
    palette = Image.fromarray(halves(10, 250)).convert("P")
    palette.save(tmp_path / "palette.png")
    with pytest.raises(InputError, match=r"got a palette of colours as depth"):
        read_depth(tmp_path / "palette.png", inputs, photo)


def test_equal_channels_are_depth_only_in_8_bits(tmp_path: Path, photo):
    same = np.repeat(halves(10, 250)[..., None], 3, -1)
    path = saved(tmp_path / "same.png", same)
    one = saved(tmp_path / "one.png", halves(10, 250))
    inputs = InputsConfig(depth="png8")
    torch.testing.assert_close(read_depth(path, inputs, photo), read_depth(one, inputs, photo))
    with pytest.raises(InputError, match=r"got 3 equal channels in depth; expected one channel"):
        read_depth(path, InputsConfig(), photo)


def test_depth_of_another_size(tmp_path: Path, photo):
    half = saved(tmp_path / "half.npy", halves(2, 4, "float32")[::2, ::2])
    with pytest.raises(InputError, match=r"20 x 24 pixels.*--inputs.resize_depth.*register"):
        read_depth(half, METRES, photo)
    resizing = METRES.replace({"resize_depth": True})
    whole = saved(tmp_path / "whole.npy", halves(2, 4, "float32"))
    torch.testing.assert_close(read_depth(half, resizing, photo), read_depth(whole, METRES, photo))
    wide = saved(tmp_path / "wide.npy", np.ones((20, 40), "float32"))
    with pytest.raises(InputError, match=r"the shapes differ.*registered to the image"):
        read_depth(wide, resizing, photo)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_resized_depth_is_turned_with_its_photo(tmp_path: Path, orientation: int):
    values = np.arange(40 * 48, dtype="float32").reshape(40, 48) / 1000 + 1
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    turned = read_photo(tmp_path / "turned.jpg")
    whole = read_depth(saved(tmp_path / "whole.npy", values), METRES, turned)
    doubled = np.repeat(np.repeat(values, 2, 0), 2, 1)
    resizing = METRES.replace({"resize_depth": True})
    found = read_depth(saved(tmp_path / "doubled.npy", doubled), resizing, turned)
    torch.testing.assert_close(found, whole)


def lines(folder: Path, name: str, count: int, **fields) -> Path:
    rows = []
    for number in range(count):
        stem = f"{name}_{number}"
        saved(folder / f"{stem}.png", np.full((*SIZE, 3), number, np.uint8))
        saved(folder / f"{stem}_depth.npy", np.full(SIZE, 2000.0 if number % 2 else 2.0, "float32"))
        saved(folder / f"{stem}_label.png", halves(0, 1))
        row = {
            "id": stem, "image": f"{stem}.png", "depth": f"{stem}_depth.npy",
            "label": f"{stem}_label.png", "depth_scale": 1000 if number % 2 else 1,
        }  # fmt: skip
        rows.append(row | {key: value(number) for key, value in fields.items()})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def data_config(folder: Path, **changes) -> JsonlDataConfig:
    (folder / "classes.txt").write_text("a\nb\n")
    settings = {
        "train": lines(folder, "train", 12, group=lambda number: number // 4),
        "classes": folder / "classes.txt", "label_offset": 0, "ignore_index": 255,
    }  # fmt: skip
    return load_config(JsonlDataConfig, settings | changes)


def test_a_sequence_is_held_out_as_a_whole(tmp_path: Path):
    config = data_config(tmp_path)
    held = [record.id for record in read_records(config, "validation")]
    every = [f"train_{number}" for number in range(12)]
    assert held in (every[:4], every[4:8], every[8:])
    assert [r.id for r in read_records(config, "train")] == [i for i in every if i not in held]


def test_validation_images_can_have_a_file(tmp_path: Path):
    config = data_config(tmp_path, validation=lines(tmp_path, "val", 3))
    assert [record.id for record in read_records(config, "validation")] == [
        "val_0", "val_1", "val_2",
    ]  # fmt: skip
    assert len(read_records(config, "train")) == 12
    assert "validation_share" in config.without_effect()


@pytest.mark.parametrize("in_memory", [False, True])
def test_units_of_depth_and_size_of_single_images(tmp_path: Path, in_memory: bool):
    config = data_config(tmp_path, in_memory=in_memory, num_workers=0)
    inputs = InputsConfig(depth="metric", depth_scale=500, size=(32, 64))
    text = TextConfig(source="none")
    source = FileSource(config, inputs, text, None, AugmentConfig(), torch.device("cpu"))
    (batch,) = source.images("validation", "none", 8)
    assert batch.rgb.shape == (4, 3, 32, 64)
    assert batch.depth is not None
    two_metres = torch.full((4, 1, 32, 64), (0.2 - 0.48) / 0.28)
    torch.testing.assert_close(batch.depth, two_metres)
    assert batch.labels.unique().tolist() == [0, 1]


def test_a_model_keeps_and_says_how_it_was_trained(tmp_path: Path, capsys):
    data = data_config(tmp_path).replace({"words_are": "oracle"})
    config = load_config(
        PixelsTrainConfig, "pixels/rooms",
        {"num_classes": 2, "text.source": "none", "data": data.model_dump(),
         "inputs.depth_scale": 1.0, "inputs.size": None, "augment.scales": (), "augment.crop": None,
         "train.out": tmp_path, "train.name": "mine", "encoder.depths": (1, 1, 1, 1)},
    )  # fmt: skip
    assert train_model(config.smoke()).ended == "total_steps"
    stored = Segmenter.from_pretrained(tmp_path / "mine" / "model").config
    assert (stored.image_size, stored.label_offset) == (SIZE, 0)
    image, depth = (tmp_path / f"train_0{end}" for end in (".png", "_depth.npy"))
    words = ["--image", image, "--depth", depth, "--model", tmp_path / "mine"]
    assert main(["pixels", "predict", *map(str, words), "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "trained on 40 x 48 pixels, depth metric with 1 units per metre" in printed
    assert "label files count classes from 0" in printed
    trained = json.loads((tmp_path / "out" / "result.json").read_text())["trained"]
    assert trained == {
        "images": None, "image_size": [40, 48], "depth": "metric", "depth_scale": 1.0,
        "words": "none", "words_are": None, "label_offset": 0,
    }  # fmt: skip


def test_a_size_travels_with_the_model(tmp_path: Path, photo):
    inputs = {"inputs.size": (32, 64), "inputs.depth": "none"}
    config = SegmenterConfig(num_classes=3).replace(SIZES["small"] | PRESETS[0] | inputs)
    seen = []
    model = PixelsModel(config).eval()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    model.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    found = predict(photo.path, model=Segmenter(config, model))
    assert found.labels.shape == SIZE
    assert {tuple(shape[-2:]) for shape in seen} == {(32, 64)}
