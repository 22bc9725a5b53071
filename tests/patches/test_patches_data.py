"""Captioned images from files and scenes: splits, dense captions, augmentation, positives."""

import json

import pytest
import torch
from patch_models import karpathy

from eligo.errors import ConfigError, InputError
from eligo.patches.config import KarpathyDataConfig, PatchesTrainConfig, ScenesDataConfig
from eligo.patches.data import augment
from eligo.patches.data.file_source import FileSet, FileSource
from eligo.patches.data.readers import read_captions
from eligo.patches.data.scene_source import SceneSet, SceneSource, pieces_of
from eligo.patches.model.build import scene_tokenizer
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.scenes import SceneConfig

SPLITS = ("train", "restval", "val", "test", "train")
SCENES = SceneConfig(height=56, width=56)


def data_of(tmp_path, splits=SPLITS, **changes) -> KarpathyDataConfig:
    captions, images = karpathy(tmp_path, splits, captions=changes.pop("captions_each", 2))
    return KarpathyDataConfig(captions=captions, images=images, **changes)


# ------------------------------------------------------------------ Karpathy files


def test_restval_is_training_data(tmp_path):
    data = data_of(tmp_path)
    assert [image.index for image in read_captions(data, "train")] == [0, 1, 4]
    assert [image.index for image in read_captions(data, "val")] == [2]
    assert read_captions(data, "test")[0].path.name == "picture_3.png"


def test_only_five_captions_are_used(tmp_path):
    data = data_of(tmp_path, captions_each=7)
    assert {len(image.captions) for image in read_captions(data, "train")} == {5}


def test_coco_folder_layout(tmp_path):
    data = data_of(tmp_path)
    content = json.loads(data.captions.read_text())
    content["images"][2]["filepath"] = "val2014"
    data.captions.write_text(json.dumps(content))
    assert read_captions(data, "val")[0].path == data.images / "val2014" / "picture_2.png"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.pop("filename"), r"images\[1\]\.filename: missing"),
        (lambda entry: entry.update(split="dev"), "split: got 'dev', expected 'train', 'restval'"),
        (lambda entry: entry.update(sentences=[]), "picture_1.png has no or an empty caption"),
        (lambda entry: entry.update(sentences=[{"tokens": []}]), r"sentences\[0\].raw: missing"),
        (lambda entry: entry.update(sentences=["a ball"]), r"images\[1\].sentences\[0\]: got 'a b"),
        (lambda entry: entry.update(sentences=[{"raw": None}]), r"images\[1\].*raw: got None"),
        (lambda entry: entry.update(filename=7), r"images\[1\].filename: got 7, exp"),
        (lambda _: "picture_1.png", r"images\[1\]: got 'picture_1.png'"),
    ],
)
def test_invalid_karpathy_files_are_refused(tmp_path, change, message):
    data = data_of(tmp_path)
    content = json.loads(data.captions.read_text())
    changed = change(content["images"][1])
    if isinstance(changed, str) and message.endswith("'picture_1.png'"):
        content["images"][1] = changed
    data.captions.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_captions(data, "train")


def test_missing_splits_and_files_are_refused(tmp_path):
    data = data_of(tmp_path, splits=("train",))
    with pytest.raises(InputError, match="no image of split 'val', found train"):
        read_captions(data, "val")
    data.captions.write_text("[]")
    with pytest.raises(InputError, match=r"got \[\], expected a JSON object"):
        read_captions(data, "train")


def test_checkpoint_is_chosen_on_val(tmp_path):
    """Never on the test split, for any config."""
    source = FileSource(data_of(tmp_path), RetrievalModel.tiny(), dense=False)
    assert [image.index for image in source.validation().given] == [2]


# ------------------------------------------------------------------ dense captions


@pytest.mark.parametrize("name", ["imgid", "cocoid", "filename"])
def test_dense_captions_by_name(tmp_path, name):
    data = data_of(tmp_path, dense=tmp_path / "dense.jsonl")
    images = json.loads(data.captions.read_text())["images"]
    lines = [{"image_id": image[name], "text": f"all of {image['imgid']}"} for image in images]
    data.dense.write_text("\n".join(map(json.dumps, reversed(lines))))
    assert [image.dense for image in read_captions(data, "train")] == [
        "all of 0", "all of 1", "all of 4"
    ]  # fmt: skip


def test_dense_captions_in_order(tmp_path):
    """Lines without ids, as many as images of the file or of the split."""
    data = data_of(tmp_path, dense=tmp_path / "dense.jsonl")
    line = {"model_id": "some", "metadata": {}}
    texts = [json.dumps(line | {"text": f"all of {n}"}) for n in range(len(SPLITS))]
    data.dense.write_text("\n".join(texts))
    assert read_captions(data, "val")[0].dense == "all of 2"
    (tmp_path / "dense_train.jsonl").write_text("\n".join(texts[:3]))
    split = data.model_copy(update={"dense": tmp_path / "dense_{split}.jsonl"})
    assert [image.dense for image in read_captions(split, "train")][2] == "all of 2"
    data.dense.write_text("\n".join(texts[:4]))
    with pytest.raises(InputError, match="got 4 lines without image_id for 5 images"):
        read_captions(data, "train")


def test_missing_or_invalid_dense_captions_are_refused(tmp_path):
    data = data_of(tmp_path, dense=tmp_path / "dense.jsonl")
    data.dense.write_text('{"image_id": 0, "text": "a"}\n{"image_id": 1, "text": "b"}\n')
    with pytest.raises(InputError, match=r"no dense caption for 1 of 3 images.*imgid 4"):
        read_captions(data, "train")
    data.dense.write_text('{"image_id": 0, "text": "a"}\n{"image_id": 1, "text": ""}\n')
    with pytest.raises(InputError, match=r"dense\.jsonl:2: text: got '', expected"):
        read_captions(data, "train")
    for bad in (b'{"image_id": 0, "text": "a"}\n{"image_id": 0, "text": "b"}', b'{"text": "\xff"}'):
        data.dense.write_bytes(bad)
        with pytest.raises(InputError, match=r"dense\.jsonl:2: image_id: got '0'|cannot be read"):
            read_captions(data, "train")
    mixed = [
        {"image_id": 0, "text": "a"},
        *[{"text": "b"}] * 4,
    ]  # as many as images, but ambiguous
    data.dense.write_text("\n".join(map(json.dumps, mixed)))
    with pytest.raises(InputError, match=r"dense\.jsonl:2: image_id: missing"):
        read_captions(data, "train")
    with pytest.raises(ConfigError, match=r"needs data\.dense"):
        PatchesTrainConfig().replace(
            {"data": {"kind": "karpathy", "captions": "a", "images": "b"},
             "model.match.dense": True}
        )  # fmt: skip


def test_text_encodings_of_other_programs(tmp_path):
    """A byte-order mark, CRLF, names and texts in any script, line separators inside a text."""
    data = data_of(tmp_path, dense=tmp_path / "dense.jsonl", splits=("train", "train"))
    content = json.loads(data.captions.read_text())
    for entry, name in zip(content["images"], ("фото é.png", "写真 🐈.png"), strict=True):
        (data.images / entry["filename"]).rename(data.images / name)
        entry["filename"] = name
    raw = json.dumps(content, ensure_ascii=False, indent=1).replace("\n", "\r\n")
    data.captions.write_bytes(raw.encode("utf-8-sig"))
    texts = ["ein Ball\u2028ein Stern", "two\x85gems"]
    lines = [
        json.dumps({"image_id": entry["filename"], "text": text}, ensure_ascii=False)
        for entry, text in zip(content["images"], texts, strict=True)
    ]
    data.dense.write_bytes("\r\n".join([*lines, ""]).encode("utf-8-sig"))
    found = read_captions(data, "train")
    assert [image.dense for image in found] == texts
    assert not FileSet(found, RetrievalModel.tiny()).unreadable


# ------------------------------------------------------------------ batches of files


def test_batches_of_files(tmp_path):
    model = RetrievalModel.tiny()
    lines = "\n".join(json.dumps({"image_id": i, "text": "a ball. a gem."}) for i in range(5))
    (tmp_path / "dense.jsonl").write_text(lines)
    data = data_of(tmp_path, dense=tmp_path / "dense.jsonl")
    whole = next(FileSource(data, model, dense=True).batches(6, 0, 0, 0, 1))
    assert whole.images.shape == (6, 3, 56, 56)
    assert sorted(whole.image_ids.tolist()) == [0, 0, 1, 1, 4, 4]  # every pair once per epoch
    assert len(whole.dense[0]) == 6
    halves = [next(FileSource(data, model, dense=True).batches(6, 0, 0, r, 2)) for r in (0, 1)]
    assert torch.equal(torch.cat([half.images for half in halves]), whole.images)
    assert torch.equal(torch.cat([half.image_ids for half in halves]), whole.image_ids)


def test_texts_are_unchanged_without_augmentation(tmp_path):
    model = RetrievalModel.tiny()
    data = data_of(tmp_path, augment=False)
    batch = next(FileSource(data, model, dense=False).batches(6, 0, 0, 0, 1))
    found = {
        model.text_encoder.tokenizer.decode(row, skip_special_tokens=True) for row in batch.texts[0]
    }
    assert len(found) == 2


def test_unreadable_images_are_skipped_or_refused(tmp_path, caplog):
    model = RetrievalModel.tiny()
    data = data_of(tmp_path, splits=("train", "train", "val", "val"), num_workers=0)
    (data.images / "picture_0.png").write_bytes(b"no image")
    (data.images / "picture_3.png").unlink()
    batch = next(FileSource(data, model, dense=False).batches(4, 0, 0, 0, 1))
    assert batch.image_ids.tolist() == [1, 1, 1, 1]
    assert "skipped" in caplog.text
    dev = FileSource(data, model, dense=False).validation()
    assert [path.endswith("picture_3.png") for path in dev.unreadable] == [True]
    assert dev.positive.tolist() == [[True, True]]
    whole = (data.images / "picture_2.png").read_bytes()
    (data.images / "picture_2.png").write_bytes(whole[: len(whole) // 2])  # truncated
    with pytest.raises(InputError, match="none of 2 validation images can be read"):
        FileSet(read_captions(data, "val"), model).kept  # noqa: B018


# ------------------------------------------------------------------ augmentation


def test_crops_keep_most_of_the_image():
    ramp = torch.arange(80, dtype=torch.uint8).repeat(3, 60, 1)  # the value is the column index
    widths, mirrored = [], 0
    for _ in range(200):
        row = augment.random_crop(ramp, 80)[0, 0].int()
        mirrored += int(row[0] > row[-1])
        widths.append(int((row[0] - row[-1]).abs()) / 80)
    assert 0.55 < min(widths) < 0.75  # 0.6 of the area, at most 4:3
    assert max(widths) > 0.9
    assert 70 < mirrored < 130
    assert all(
        int(row[0]) < int(row[-1])
        for row in (augment.random_crop(ramp, 80, flip=False)[0, 0] for _ in range(20))
    )


def test_full_crop_is_the_image(monkeypatch):
    monkeypatch.setattr(augment, "_SMALLEST", 1.0)
    image = torch.randint(256, (3, 24, 24), dtype=torch.uint8)
    monkeypatch.setattr(augment.math, "exp", lambda _: 1.0)
    assert torch.equal(augment.random_crop(image, 24, flip=False), image)


def test_a_fifth_of_the_word_pieces_is_changed():
    pieces = list(range(100, 200)) * 100
    changed = augment.change_pieces(pieces, mask_id=4, num_pieces=50)
    masked = changed.count(4)
    replaced = sum(piece < 50 for piece in changed) - masked
    deleted = len(pieces) - len(changed)
    share = [100 * count / len(pieces) for count in (masked, replaced, deleted)]
    assert share == [pytest.approx(10, abs=1), pytest.approx(2, abs=0.5), pytest.approx(8, abs=1)]
    assert all(len(augment.change_pieces([9], 4, 50)) == 1 for _ in range(100))


# ------------------------------------------------------------------ scenes


def test_word_pieces_equal_those_of_the_tokenizer():
    scenes = SceneSet(SCENES, "train", 6, 3, torch.device("cpu"))
    tokenizer = scene_tokenizer()
    ids, mask = pieces_of(scenes.captions.words.flatten(0, 1))
    texts = [scenes.captions.text(i, j) for i in range(6) for j in range(3)]
    found = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    assert found == tokenizer(texts)["input_ids"]


def test_every_true_image_is_a_positive():
    config = ScenesDataConfig(
        scenes=SCENES, train_images=64, captions_per_image=3, captions_per_step=2
    )
    source = SceneSource(config, torch.device("cpu"), dense=True, see=True)
    stream = source.batches(32, 0, 0, 0, 1)
    batch = next(stream)
    assert batch.positive.shape == (32, 64)
    own = torch.arange(32).repeat_interleave(2)
    assert batch.positive[own, torch.arange(64)].all()
    assert batch.positive.sum() > 64  # some captions also fit other scenes
    assert batch.dense[0].shape[0] == 32
    assert torch.equal(batch.rendered.rgb, batch.images)
    again = next(source.batches(32, 0, 1, 0, 1))
    assert torch.equal(next(stream).images, again.images)  # any step can be the first
    halves = [next(source.batches(32, 0, 0, rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.cat([half.texts[0] for half in halves]), batch.texts[0])
    assert torch.equal(halves[1].positive, batch.positive)
    with pytest.raises(InputError, match="batch_size: got 65, expected at most 64"):
        next(source.batches(65, 0, 0, 0, 1))
