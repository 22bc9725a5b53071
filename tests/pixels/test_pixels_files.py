"""Readers of data sets on disk, compared with the exported scenes; invalid files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from pixel_files import SCENES, exported

from eligo.errors import InputError
from eligo.pixels.config import (
    AugmentConfig,
    InputsConfig,
    JsonlDataConfig,
    NyuDataConfig,
    SunDataConfig,
    TextConfig,
    WordsTextConfig,
)
from eligo.pixels.data.batch import Batch
from eligo.pixels.data.classes import NYU_40, SUN_37, read_classes
from eligo.pixels.data.file_source import FileSource
from eligo.pixels.data.pictures import (
    LabelNumbers,
    Photo,
    check_label_range,
    decode_depth,
    normalise_rgb,
    read_depth,
    read_label,
    read_photo,
)
from eligo.pixels.data.records import class_names, read_records
from eligo.pixels.text.encoders import WordsEncoder
from eligo.scenes.dataset import SceneDataset

TEXT = TextConfig(max_tags=14, encoder=WordsTextConfig(dim=16))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("rooms")
    return {
        "nyu": exported(root / "nyu", "nyu", sensor=True),
        "nyu8": exported(root / "nyu8", "nyu", depth="png8"),
        "sun": exported(root / "sun", "sun"),
        "jsonl": exported(root / "jsonl", "jsonl"),
    }


def source(config, depth: str = "metric", text: TextConfig = TEXT, **augment) -> FileSource:
    encoder = WordsEncoder(WordsTextConfig(dim=16)) if text.source != "none" else None
    inputs = InputsConfig(depth=depth)  # pyright: ignore[reportArgumentType]
    return FileSource(config, inputs, text, encoder, AugmentConfig(**augment), CPU)


def config_of(folders: dict[str, Path], kind: str):
    folder = folders[kind]
    if kind == "jsonl":
        return JsonlDataConfig(
            train=folder / "train.jsonl",
            test=folder / "test.jsonl",
            classes=folder / "classes.txt",
        )
    cls = SunDataConfig if kind == "sun" else NyuDataConfig
    return cls(root=folder, classes=folder / "classes.txt", words=folder / "tags.jsonl")


@pytest.mark.parametrize(
    ("kind", "depth"), [("nyu", "metric"), ("nyu8", "png8"), ("sun", "sun16"), ("jsonl", "metric")]
)
def test_exported_data_is_read_back(folders: dict[str, Path], kind: str, depth: str):
    found = source(config_of(folders, kind), depth)
    world = SceneDataset(SCENES, "test", 4, num_questions=0, num_captions=0, sensor=kind == "nyu")
    items = world.__getitems__(list(range(4)))
    batches = list(found.images("test", "predicted", 3))
    assert [len(batch.rgb) for batch in batches] == [3, 1]
    rgb = torch.stack([item.rgb for item in items])
    torch.testing.assert_close(torch.cat([b.rgb for b in batches]), normalise_rgb(rgb))
    labels = torch.stack([item.labels for item in items])
    assert torch.equal(torch.cat([b.labels for b in batches]), labels)
    metres = torch.stack([item.depth for item in items])
    mask = torch.stack([item.depth_mask for item in items])
    assert torch.equal(torch.cat([b.depth_mask for b in batches])[:, 0], mask)
    z = torch.where(mask, (metres.clamp(max=10) / 10 - 0.48) / 0.28, 0)
    step = 0.5 / 255 if depth == "png8" else 0.0005 / 10  # half a stored unit
    stored = torch.cat([b.depth for b in batches])[:, 0]
    assert (stored - z).abs().max() <= 1.01 * step / 0.28
    assert found.classes == read_classes(folders[kind] / "classes.txt")
    text = batches[1].text
    assert text is not None
    own = WordsEncoder(WordsTextConfig(dim=16)).encode(items[3].tags)
    torch.testing.assert_close(text.embeddings[0, : len(own)], own)
    assert int(text.mask.sum()) == len(own)


def test_standard_class_names():
    assert len(NYU_40) == len(set(NYU_40)) == 40
    assert (NYU_40[0], NYU_40[1], NYU_40[-1]) == ("wall", "floor", "otherprop")
    assert class_names(SunDataConfig(root=Path())) == SUN_37
    assert SUN_37[-1] == "bag"


def test_images_in_memory_are_those_of_the_files(folders: dict[str, Path]):
    config = config_of(folders, "nyu")
    kept = source(config.replace({"in_memory": True}), mirror=False)
    read = source(config, mirror=False)
    for words in ("predicted", "none", "shuffled"):
        for one, other in zip(
            kept.images("test", words, 3), read.images("test", words, 3), strict=True
        ):
            assert_same_batch(one, other)
    first, second = (next(kept.batches(4, 0, step, 0, 1)) for step in (0, 3))
    stream = kept.batches(4, 0, 0, 0, 1)
    assert_same_batch(next(stream), first)
    next(stream), next(stream)
    assert_same_batch(next(stream), second)  # a function of the step
    parts = [next(kept.batches(4, 0, 3, rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.cat([part.labels for part in parts]), second.labels)


def assert_same_batch(one: Batch, other: Batch) -> None:
    for name in ("rgb", "labels", "depth", "depth_mask"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))
    assert (one.text is None) == (other.text is None)
    if one.text is not None and other.text is not None:
        torch.testing.assert_close(one.text.embeddings, other.text.embeddings)
        assert torch.equal(one.text.mask, other.text.mask)


# ------------------------------------------------------------------ splits and words


def test_neighbours_are_held_out_together(folders: dict[str, Path]):
    config = config_of(folders, "nyu").replace({"validation_block": 3, "validation_share": 0.3})
    held = sorted(record.id for record in read_records(config, "validation"))
    every = sorted(held + [record.id for record in read_records(config, "train")])
    assert len(every) == len(set(every)) == 10
    assert held in [every[first : first + 3] for first in range(0, 10, 3)]
    with pytest.raises(InputError, match="10 images in 1 groups"):
        read_records(config.replace({"validation_block": 10}), "train")


def test_validation_is_a_seeded_share_of_train_and_never_test(folders: dict[str, Path]):
    config = config_of(folders, "nyu")
    ids = {
        split: [record.id for record in read_records(config, split, words=("tags",))]
        for split in ("train", "validation", "test")
    }
    assert len(ids["validation"]) == 1
    assert len(ids["train"]) == 9
    assert not set(ids["validation"]) & set(ids["train"])
    assert all(name.startswith("train") for name in ids["train"] + ids["validation"])
    assert all(name.startswith("test") for name in ids["test"])
    again = read_records(config, "validation", words=("tags",))
    assert [record.id for record in again] == ids["validation"]
    seeds = {
        read_records(config.replace({"validation_seed": seed}), "validation", words=("tags",))[0].id
        for seed in range(8)
    }
    assert len(seeds) > 2


def test_words_are_joined_by_exact_id(folders: dict[str, Path], tmp_path: Path, caplog):
    config = config_of(folders, "nyu")
    assert config.words is not None
    lines = config.words.read_text().splitlines()
    renamed = [line.replace("train_000003", "train_3") for line in lines]
    (tmp_path / "tags.jsonl").write_text("\n".join(renamed))
    config = config.replace({"words": tmp_path / "tags.jsonl"})
    with pytest.raises(
        InputError, match=r"1 of 10 images, first 'train_000003'; did you mean .*allow_missing"
    ):
        read_records(config, "train", words=("tags",))
    config = config.replace({"allow_missing_words": True})
    read_records(config, "train", words=("tags",))
    assert "words for 9 of 10" in caplog.text
    read_records(config_of(folders, "nyu").replace({"words": None}), "train")


def test_text_files_of_other_programs(tmp_path: Path):
    """Byte order mark, Windows line ends, a paragraph separator inside a sentence."""
    rows = [{"id": f"é {n}", "image": "ä.png", "captions": ["one\u2028two"]} for n in range(3)]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n")
    config = JsonlDataConfig(train=tmp_path / "train.jsonl", classes=tmp_path / "c.txt")
    records = read_records(config, "train", words=("captions",))
    assert len(records) == 2
    assert records[0].captions == ("one\u2028two",)
    assert records[0].image == tmp_path / "ä.png"


def test_only_words_of_the_configured_kind_are_used(tmp_path: Path):
    """A model of captions must not train on tags."""
    images = [{"id": name, "image": f"{name}.png"} for name in "abcd"]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, images)))
    lines = [{"id": name, "tags": ["desk"]} for name in "abcd"]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = JsonlDataConfig(
        train=tmp_path / "train.jsonl", classes=tmp_path / "c.txt", words=tmp_path / "words.jsonl"
    )
    with pytest.raises(InputError, match="has no captions for 4 of 4 images") as caught:
        read_records(config, "train", words=("captions",))
    assert "did you mean" not in str(caught.value)  # the ids match
    assert len(read_records(config, "train", words=("tags", "captions"))) == 3
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, [*lines, lines[1]])))
    with pytest.raises(InputError, match=r"words\.jsonl:5: id: got 'b', which line 2"):
        read_records(config, "train", words=("tags",))


def test_provenances_of_words(folders: dict[str, Path]):
    config = config_of(folders, "jsonl")
    found = source(config.replace({"words_are": "oracle"}))
    assert found.provenances == ("none", "oracle", "shuffled")  # ground truth is never first
    assert source(config).provenances == ("predicted", "none", "shuffled")
    none, own, other = (next(found.images("test", p, 4)).text for p in found.provenances)
    assert none is None
    assert own is not None
    assert other is not None
    assert (own.provenance, other.provenance) == ("oracle", "shuffled")
    torch.testing.assert_close(other.embeddings[0], own.embeddings[2])
    assert not torch.equal(other.mask, own.mask)
    labels = source(config, text=TEXT.replace({"source": "labels"}))
    assert labels.provenances == ("predicted", "none")
    assert next(labels.images("test", "predicted", 4)).text.mask.sum() == 4 * 14  # pyright: ignore[reportOptionalMemberAccess]
    assert source(config, text=TEXT.replace({"source": "none"})).provenances == ("none",)


def test_single_image_has_no_shuffled_words(folders: dict[str, Path], tmp_path: Path):
    line = (folders["jsonl"] / "test.jsonl").read_text().splitlines()[0]
    alone = folders["jsonl"] / "one.jsonl"
    alone.write_text(line)
    found = source(config_of(folders, "jsonl").replace({"test": alone}))
    assert [len(batch.rgb) for batch in found.images("test", "predicted", 4)] == [1]
    assert not list(found.images("test", "shuffled", 4))


def test_implausible_depth_is_logged_once(folders: dict[str, Path], caplog):
    next(source(config_of(folders, "nyu")).batches(4, 3, 0, 0, 1))
    assert not caplog.messages
    found = source(config_of(folders, "nyu8"), "metric")
    stream = found.batches(4, 3, 0, 0, 1)
    next(stream), next(stream)
    (message,) = caplog.messages
    assert "inputs.depth png8" in message


def test_training_batches_repeat_and_are_split_over_ranks(folders: dict[str, Path]):
    found = source(config_of(folders, "nyu"), scales=(0.75, 1.25), crop=(40, 72))
    whole = found.batches(4, seed=3, start_step=0, rank=0, world_size=1)
    first, second = next(whole), next(whole)
    assert first.rgb.shape == (4, 3, 40, 72)
    again = next(found.batches(4, seed=3, start_step=1, rank=0, world_size=1))
    torch.testing.assert_close(again.rgb, second.rgb)
    assert torch.equal(again.labels, second.labels)
    halves = [next(found.batches(4, 3, 0, rank, 2)) for rank in range(2)]
    assert torch.equal(torch.cat([half.labels for half in halves]), first.labels)


# ------------------------------------------------------------------ depth


def test_depth_formats_by_hand():
    values = np.array([[0, 255, 122]], dtype=np.uint8)
    z, known = decode_depth(values, InputsConfig(depth="png8"))
    assert known.all()
    torch.testing.assert_close(z[0, 0], (torch.tensor([0, 1, 122 / 255]) - 0.48) / 0.28)
    metres = np.array([[0.0, np.nan, 2.5, 40.0]], dtype=np.float32)
    z, known = decode_depth(metres, InputsConfig(depth="metric", depth_scale=1))
    assert known[0, 0].tolist() == [False, False, True, True]
    torch.testing.assert_close(
        z[0, 0], torch.tensor([0, 0, (0.25 - 0.48) / 0.28, (1 - 0.48) / 0.28])
    )
    millimetres = np.array([[0, 1, 2500, 8191, 9999]], dtype=np.uint16)
    turned = (millimetres << np.uint16(3)) | (millimetres >> np.uint16(13))
    assert (turned != millimetres).any()
    sun = decode_depth(turned, InputsConfig(depth="sun16"))
    plain = decode_depth(millimetres, InputsConfig(depth="metric"))
    for one, other in zip(sun, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_colours_by_hand():
    rgb = torch.tensor([255, 51, 102], dtype=torch.uint8).view(3, 1, 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for order, values in (("rgb", [1.0, 0.2, 0.4]), ("bgr", [0.4, 0.2, 1.0])):
        expected = (torch.tensor(values) - mean) / std  # mean and std are not reordered
        torch.testing.assert_close(normalise_rgb(rgb, order).flatten(), expected)


def test_arrays_and_tripled_depth_are_read(tmp_path: Path):
    like = Photo(tmp_path / "i.png", torch.zeros(3, 32, 40, dtype=torch.uint8), 1, (32, 40))
    np.save(tmp_path / "d.npy", np.full((32, 40), 2.0, dtype=np.float32))
    z, _ = read_depth(tmp_path / "d.npy", InputsConfig(depth_scale=1), like)
    assert z.shape == (1, 32, 40)
    Image.fromarray(np.full((32, 40, 3), 7, dtype=np.uint8)).save(tmp_path / "d.png")
    read_depth(tmp_path / "d.png", InputsConfig(depth="png8"), like)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(40, 48), (40, 40)])
def test_depth_and_labels_are_turned_with_the_image(tmp_path: Path, orientation: int, size):
    """Image, depth and labels stay aligned for every EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    values = np.random.default_rng(0).integers(1, 200, size, dtype=np.uint8)
    image = tmp_path / "image.png"
    Image.fromarray(np.stack([values] * 3, -1)).save(image, exif=exif)
    Image.fromarray(values).save(tmp_path / "stored.png")
    Image.fromarray(values).save(tmp_path / "own.png", exif=exif)
    np.save(tmp_path / "stored.npy", values)
    photo = read_photo(image)
    with Image.open(image) as stored:
        upright = np.array(ImageOps.exif_transpose(stored))[..., 0]
    assert (photo.pixels[0].numpy() == upright).all()
    for name in ("stored", "own"):
        label = read_label(tmp_path / f"{name}.png", LabelNumbers(200), photo)
        assert (label.numpy() + 1 == upright).all()
    inputs = InputsConfig(depth="png8")
    expected = torch.from_numpy((upright.astype(np.float32) / 255 - 0.48) / 0.28)
    for name in ("stored.png", "stored.npy", "own.png"):
        z, _ = read_depth(tmp_path / name, inputs, photo)
        torch.testing.assert_close(z[0], expected)
    if orientation >= 5 and size[0] != size[1]:  # the size shows that it is already upright
        Image.fromarray(upright).save(tmp_path / "upright.png")
        assert (
            read_label(tmp_path / "upright.png", LabelNumbers(200), photo).numpy() + 1 == upright
        ).all()


def test_labels_of_a_reduced_image_are_reduced(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr("eligo.images.MOST_PIXELS", 60 * 80)
    values = np.zeros((120, 161), dtype=np.uint8)
    values[60:, 81:] = 1
    Image.fromarray(np.stack([values * 255] * 3, -1)).save(tmp_path / "image.png")
    Image.fromarray(values + 1).save(tmp_path / "label.png")
    photo = read_photo(tmp_path / "image.png")
    assert photo.pixels.shape[1:] == (40, 54)
    assert "reduced from 120 x 161 to 40 x 54 pixels" in caplog.text
    labels = read_label(tmp_path / "label.png", LabelNumbers(2), photo)
    assert (labels.bool() == (photo.pixels[0] > 127)).all()


# ------------------------------------------------------------------ invalid files


def _image(path: Path, value: int = 1, size: tuple[int, ...] = (40, 48)) -> Path:
    Image.fromarray(np.full(size, value, dtype=np.uint8)).save(path)
    return path


def test_invalid_image_files_are_refused(tmp_path: Path):
    image = _image(tmp_path / "image.png", size=(40, 48, 3))
    like = read_photo(image)
    assert (read_label(_image(tmp_path / "0.png", 0), LabelNumbers(3), like) == 255).all()
    assert (read_label(_image(tmp_path / "3.png", 3), LabelNumbers(3), like) == 2).all()
    with pytest.raises(InputError, match=r"4\.png: got label 4, expected 1 to 3 .* 0 for"):
        read_label(_image(tmp_path / "4.png", 4), LabelNumbers(3), like)
    with pytest.raises(InputError, match=r"small\.png: got 31 x 48"):
        read_photo(_image(tmp_path / "small.png", size=(31, 48, 3)))
    with pytest.raises(InputError, match=r"40 x 47 pixels, but .*image.png has 40 x 48"):
        read_depth(_image(tmp_path / "d.png", size=(40, 47)), InputsConfig(), like)
    (tmp_path / "torn.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"torn\.png: cannot be read"):
        read_photo(tmp_path / "torn.png")
    with pytest.raises(InputError, match=r"no\.png: there is no such image"):
        read_label(tmp_path / "no.png", LabelNumbers(3), like)
    with pytest.raises(InputError, match=r"got colours as labels, expected a whole number"):
        read_label(image, LabelNumbers(3), like)
    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((40, 48), 999, dtype=np.uint16)).save(deep)
    with pytest.raises(InputError, match="8 bits"):
        read_depth(deep, InputsConfig(depth="png8"), like)
    for name, values, depth in (
        ("complex", np.ones((40, 48), dtype=complex), "metric"),
        ("text", np.full((40, 48), "far"), "metric"),
        ("float", np.full((40, 48), np.nan, dtype=np.float32), "sun16"),
        ("bytes", np.full((40, 48), 200, dtype=np.uint8), "sun16"),
    ):
        np.save(tmp_path / f"{name}.npy", values)
        with pytest.raises(InputError, match=rf"{name}\.npy: got .* (numbers|16 bits)"):
            read_depth(tmp_path / f"{name}.npy", InputsConfig(depth=depth), like)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"train\.jsonl:2:2: not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"image": "a.png"}', "id: missing; got only image"),
        ('{"id": "b"}', "image: missing; got only id"),
        (
            '{"id": "b", "image": "a.png", "tag": []}',
            "tag: got an unknown field, expected some of .*tags",
        ),
        ('{"id": "b", "image": "a.png", "tags": "desk"}', "tags: got 'desk'"),
        ('{"id": "b", "image": "a.png", "depth": 3}', "depth: got 3, expected text"),
        ('{"id": "b", "image": "a.png", "label": ["x"]}', "label: got .'x'., expected text"),
        ('{"id": "a", "image": "a.png"}', "id: got 'a', which line 1 has"),
    ],
)
def test_invalid_lines_are_refused(tmp_path: Path, line: str, message: str):
    good = json.dumps({"id": "a", "image": "a.png", "label": "a.png", "tags": []})
    (tmp_path / "train.jsonl").write_text(f"{good}\n{line}\n")
    config = JsonlDataConfig(train=tmp_path / "train.jsonl", classes=tmp_path / "c.txt")
    with pytest.raises(InputError, match=message):
        read_records(config, "train", words=("tags",))


def test_empty_and_missing_splits_are_refused(tmp_path: Path):
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(InputError, match=r"train\.txt: lists no image"):
        read_records(NyuDataConfig(root=tmp_path), "train")
    with pytest.raises(InputError, match=r"test\.txt: there is no such file"):
        read_records(NyuDataConfig(root=tmp_path), "test")
    (tmp_path / "train.txt").write_text("images/a.jpg\n")
    with pytest.raises(InputError, match=r"train.txt:1: got 'images/a.jpg', expected RGB/<id>"):
        read_records(NyuDataConfig(root=tmp_path), "train")
    config = JsonlDataConfig(train=tmp_path / "t", classes=tmp_path / "c")
    with pytest.raises(InputError, match=r"data\.test"):
        read_records(config, "test")


def test_class_lists_of_other_programs(tmp_path: Path):
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbfwall\r\nfl\xc3\xb6or\r\n")
    assert read_classes(tmp_path / "c.txt") == ("wall", "flöor")


@pytest.mark.parametrize("text", ["wall\n", "wall\nwall\n", ""])
def test_invalid_class_lists_are_refused(tmp_path: Path, text: str):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(InputError, match="different ones"):
        read_classes(tmp_path / "c.txt")


def test_labels_from_0_are_logged(tmp_path: Path, caplog):
    paths = []
    for number, highest in enumerate((1, 2)):
        values = np.zeros((40, 48), dtype=np.uint8)
        values[5:] = highest
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(values).save(paths[-1])
    check_label_range(paths, LabelNumbers(2))
    assert not caplog.records
    check_label_range(paths, LabelNumbers(3))
    assert "go from 0 to 2, and none holds 3, the last of 3 classes" in caplog.text
    photo = read_photo(_image(tmp_path / "image.png", size=(40, 48, 3)))
    with pytest.raises(InputError, match=r"got label 255, expected 1 to 3.*--data.label_offset 0"):
        read_label(_image(tmp_path / "255.png", 255), LabelNumbers(3), photo)
