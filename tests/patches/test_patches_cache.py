"""Stored features of frozen encoders: the same scores and training, computed once, never lost."""

import json
import logging
import os
import shutil
from collections import namedtuple
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from patch_models import karpathy, text_folder, vision_folder
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from eligo.cli import main
from eligo.errors import ConfigError, InputError
from eligo.patches.config import PatchesTrainConfig
from eligo.patches.data import cache as cache_module
from eligo.patches.data.cache import FeatureCache
from eligo.patches.data.cached_source import CachedPairs, CachedSet, CachedSource
from eligo.patches.data.file_source import FileSet, FileSource
from eligo.patches.data.readers import read_captions
from eligo.patches.inference.evaluate import score_set
from eligo.patches.model.encoders import ImageEncoder, TextEncoder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.training.task import PatchesTask, train_model
from eligo.train import fit
from eligo.train.check import DataCheck
from two_processes import two_processes
from worker_cases import WORKERS, assert_same_batches, assert_same_weights, sent

SPLITS = ("train",) * 7 + ("val",) * 5
CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run on a few images, with tiny pretrained encoders without dropout."""
    torch.manual_seed(0)
    vision, text = vision_folder(tmp_path, "dinov2"), text_folder(tmp_path)
    config = Path(text) / "config.json"
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps(json.loads(config.read_text()) | no_dropout))
    captions, images = karpathy(tmp_path, SPLITS)
    content = json.loads(captions.read_text())
    for number, entry in enumerate(content["images"]):  # of different lengths
        entry["sentences"][1]["raw"] = "there is a ball" + " left of a box" * (number % 4)
    captions.write_text(json.dumps(content))
    dense = tmp_path / "dense.jsonl"
    rows = [{"image_id": n, "text": "a red ball . " * (n + 1)} for n in range(len(SPLITS))]
    dense.write_text("\n".join(map(json.dumps, rows)))
    return {
        "data": {"kind": "karpathy", "captions": captions, "images": images, "augment": False,
                 "dense": dense, "num_workers": 0},
        "model.encoders": {"vision": vision, "text": text, "backbone_lr": 0, "embed_dim": 16},
        "train.batch_size": 4, "train.total_steps": 3, "train.evaluate_every": 3,
        "train.checkpoint_every": 3, "train.precision": "no", "train.out": tmp_path / "runs",
    }  # fmt: skip


def config_of(files: dict[str, Any], cache: Path | None = None, **changes: Any):
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    whole = files | {"data": files["data"] | {"cache": cache}} | dotted
    return PatchesTrainConfig().replace(whole)


def model_of(files: dict[str, Any], **encoders: Any) -> RetrievalModel:
    torch.manual_seed(1)
    changes = {"model.encoders": files["model.encoders"] | encoders}
    return RetrievalModel.build(config_of(files | changes).model).eval()


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts what runs through the encoders."""
    counts = {"images": 0, "texts": 0}
    for name, cls in (("images", ImageEncoder), ("texts", TextEncoder)):

        def states(self, *given, name=name, before=cls.states):
            counts[name] += len(given[0])
            return before(self, *given)

        monkeypatch.setattr(cls, "states", states)
    return counts


def stored_set(files, folder: Path, model: RetrievalModel, **options: Any) -> CachedSet:
    given = read_captions(config_of(files).data, "val")
    return CachedSet(FeatureCache(folder, model, **options).features(given, dense=True), model)


def plain_set(files, model: RetrievalModel) -> FileSet:
    return FileSet(read_captions(config_of(files).data, "val"), model, num_workers=0)


def shards(folder: Path, kind: str = "*") -> list[Path]:
    return sorted(folder.glob(f"{kind}-*/*.safetensors"))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("IMAGES", 4), ("TEXTS", 4)):
        monkeypatch.setattr(cache_module, f"_{name}_PER_SHARD", size)
        monkeypatch.setattr(cache_module, f"_{name}_AT_ONCE", 2)


# ------------------------------------------------------------------ the same results


@pytest.mark.parametrize(("dtype", "within"), [("float16", 1e-2), ("float32", 1e-6)])
@pytest.mark.parametrize("dense", [False, True])
def test_scores_are_those_without_the_cache(files, tmp_path, dtype, within, dense):
    model = model_of(files)
    model.config = model.config.replace({"match.dense": dense})
    plain, stored = plain_set(files, model), stored_set(files, tmp_path / "c", model, dtype=dtype)
    expected, found = score_set(model, plain), score_set(model, stored)
    assert (found - expected).abs().max() <= within * expected.abs().max()
    assert torch.equal(stored.positive, plain.positive)
    assert torch.equal(stored.owners, plain.owners)


@pytest.mark.parametrize(
    ("kind", "dense"), [("global", False), ("filip", False), ("open", True), ("paper", True)]
)
def test_training_is_that_without_the_cache(files, tmp_path, kind, dense):
    changes = {"model__match": {"kind": kind, "dense": dense}, "centre_heads": True}
    results = []
    for cache in (None, tmp_path / "cache"):
        config = config_of(files, cache, data__cache_dtype="float32", train__name=str(bool(cache)),
                           **changes)  # fmt: skip
        task = PatchesTask(config)
        results.append((fit(task, config.train), dict(task.model.named_parameters())))
    (plain, expected), (stored, found) = results
    for name, weight in expected.items():
        assert torch.allclose(found[name], weight, atol=1e-5, rtol=1e-5), name
    assert stored.best["loss"] == pytest.approx(plain.best["loss"], rel=1e-5)
    start = RetrievalModel.build(config_of(files).model).image_encoder.head.weight
    assert not torch.equal(start, found["image_encoder.head.weight"])  # it was trained


def test_batches_have_the_images_of_batches_without_the_cache(files, tmp_path):
    """An unreadable image is replaced by the same other one."""
    model = model_of(files)
    (files["data"]["images"] / "picture_2.png").write_bytes(b"no image")
    (files["data"]["images"] / "picture_4.png").unlink()
    plain = FileSource(config_of(files).data, model, dense=True)
    stored = CachedSource(config_of(files, tmp_path / "cache").data, model, dense=True)
    for one, other in islice(
        zip(*(s.batches(4, 3, 0, 0, 1) for s in (plain, stored)), strict=False), 7
    ):
        assert torch.equal(one.image_ids, other.image_ids)
        assert torch.equal(one.texts[1], other.texts[1])
        assert torch.equal(one.dense[1], other.dense[1])
        tokens = [model.image_encoder.tokens(batch.images) for batch in (one, other)]
        assert torch.allclose(*tokens, rtol=1e-2, atol=1e-2)


def test_unreadable_images_are_listed_and_all_of_them_refused(files, tmp_path, caplog):
    source = CachedSource(config_of(files, tmp_path / "cache").data, model_of(files), dense=False)
    (files["data"]["images"] / "picture_8.png").write_bytes(b"no image")
    source.check(DataCheck())
    assert "of 5 validation images, some are skipped because they cannot be read" in caplog.text
    assert [Path(path).name for path in source.validation().unreadable] == ["picture_8.png"]
    assert len(source.validation().kept) == 4
    for path in files["data"]["images"].iterdir():
        path.write_bytes(b"no image either")
    again = CachedSource(source.config, source.model, dense=False)
    with pytest.raises(InputError, match="none of 7 training images can be read"):
        again.check(DataCheck())


def test_batches_are_equal_for_any_number_of_workers_and_on_a_device(files, tmp_path):
    model = model_of(files)

    def source(workers: int) -> CachedSource:
        data = config_of(files, tmp_path / "cache", data__num_workers=workers).data
        return CachedSource(data, model, dense=True)

    def batches(source: CachedSource, start: int, count: int) -> list:
        return list(islice(source.batches(4, 3, start, 0, 1), count))

    plain = batches(source(0), 0, 6)
    for workers in WORKERS[1:]:
        assert_same_batches(batches(source(workers), 2, 4), plain[2:])
    copied = source(3)
    for features in (copied._splits[0].images, copied._splits[0].texts):
        features.to(CPU)  # as on a GPU: no worker may touch it
    pairs, workers = copied._examples([])
    assert (pairs.on_device, workers) == (True, 0)
    assert_same_batches(batches(copied, 2, 4), plain[2:])


@pytest.mark.gpu
@pytest.mark.parametrize("memory", [0.0, 8.0])
def test_batches_on_a_gpu(files, tmp_path, memory):
    """Read from the disk, or kept in the memory of the GPU."""
    batches = {}
    for device in ("cpu", "cuda"):
        data = config_of(files, tmp_path / "cache", data__cache_memory_gb=memory).data
        source = CachedSource(data, model_of(files).to(device), dense=True)
        batches[device] = list(islice(source.batches(4, 3, 0, 0, 1), 4))
        assert all(batch.images.device.type == device for batch in batches[device])
        assert source._splits[0].images.on_device == (device == "cuda" and memory > 0)
    # Computed once, so that the states are those of the CPU.
    assert_same_batches([b.map(Tensor.cpu) for b in batches["cuda"]], batches["cpu"])


def test_copies_in_workers_open_the_files_again(files, tmp_path):
    source = CachedSource(config_of(files, tmp_path / "cache").data, model_of(files), dense=False)
    pairs = CachedPairs(source._splits[0], source.model.text_encoder)
    expected = pairs.collate([pairs[0], pairs[3]])
    copy = sent(pairs)
    assert not copy.stored.images._shards  # not the states
    assert_same_batches([copy.collate([copy[0], copy[3]])], [expected])


def test_resumed_run_is_the_uninterrupted_one(files, tmp_path):
    def config(name: str) -> PatchesTrainConfig:
        return config_of(files, tmp_path / "cache", train__name=name, train__total_steps=7,
                         train__evaluate_every=4, train__checkpoint_every=4)  # fmt: skip

    whole, parts = config("whole"), config("parts")
    expected = fit(PatchesTask(whole), whole.train)
    assert fit(PatchesTask(parts), parts.train, on_evaluate=lambda *_: True).last_step == 4
    found = fit(PatchesTask(parts), parts.train, resume=True)
    assert found.best == expected.best
    assert_same_weights(found.folder / "last", expected.folder / "last")


# ------------------------------------------------------------------ once


def test_everything_is_encoded_once(files, tmp_path, encoded, caplog):
    caplog.set_level(logging.INFO)
    config = config_of(files, tmp_path / "cache", model__match={"dense": True})
    run = train_model(config.replace({"train.name": "first"}))
    # Texts: the caption of all images, four others, and a dense caption for each image.
    assert encoded == {"images": len(SPLITS), "texts": 1 + 4 + len(SPLITS)}
    assert "computing features of 12 of 12 images (0.01 GB) and 17 of 17 texts" in caplog.text
    train_model(config.replace({"train.name": "second"}))
    assert encoded["images"] == len(SPLITS)
    # The saved model has the same encoders.
    model = RetrievalModel.from_pretrained(run.folder)
    score_set(model, stored_set(files, tmp_path / "cache", model))
    assert (encoded["images"], encoded["texts"]) == (len(SPLITS), 5 + len(SPLITS))


def test_only_changed_images_are_encoded_again(files, tmp_path, encoded):
    model, folder = model_of(files), tmp_path / "cache"
    stored_set(files, folder, model)
    assert encoded["images"] == 5
    path = files["data"]["images"] / "picture_9.png"
    Image.new("RGB", (40, 48), "red").save(path)
    changed = stored_set(files, folder, model)
    assert encoded["images"] == 6
    expected = score_set(model, plain_set(files, model))
    assert torch.allclose(score_set(model, changed), expected, rtol=1e-2, atol=1e-2)
    # A copy with another name or time has the same content.
    shutil.copy(path, path.with_name("picture_10.png"))
    os.utime(path, (1, 1))
    encoded["images"] = 0
    stored_set(files, folder, model)
    assert encoded["images"] == 0


def test_unchanged_files_are_not_read(files, tmp_path, monkeypatch):
    model, folder = model_of(files), tmp_path / "cache"
    stored_set(files, folder, model)
    monkeypatch.setattr(cache_module, "_file_hash", lambda path: pytest.fail(path))
    stored_set(files, folder, model)


def test_other_encoders_and_preprocessing_have_other_folders(files, tmp_path, encoded):
    folder = tmp_path / "cache"
    stored_set(files, folder, model_of(files))
    other = model_of(files)
    with torch.no_grad():
        next(other.image_encoder.backbone.parameters()).view(-1)[0] += 1e-3
    others = [other, model_of(files, image_size=42), model_of(files, image_std=(0.1, 0.2, 0.3))]
    for number, model in enumerate(others, 2):
        before = encoded["images"]
        stored_set(files, folder, model)
        assert encoded["images"] == before + 5
        assert len(list(folder.glob("images-*"))) == number
    assert len(list(folder.glob("texts-*"))) == 1
    stored_set(files, folder, model_of(files), dtype="float32")
    assert len(list(folder.glob("texts-*"))) == 2
    # The head is not part of it.
    before = dict(encoded)
    stored_set(files, folder, model_of(files, embed_dim=8))
    assert encoded == before


# ------------------------------------------------------------------ nothing is lost


@pytest.mark.usefixtures("small_shards")
def test_interrupted_computation_continues_with_identical_files(
    files, tmp_path, monkeypatch, encoded
):
    model = model_of(files)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stored_set(files, whole, model)
    assert [len(shards(whole, kind)) for kind in ("images", "texts")] == [2, 3]
    store, written = cache_module.FeatureStore, []
    write = store.write

    def killed(self, keys, states):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(keys)
        write(self, keys, states)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            stored_set(files, parts, model)
    (parts / shards(parts)[0].parent.name / ".eligo-0123456789ab.tmp").mkdir()
    assert len(shards(parts)) == 1
    encoded["images"] = 0
    stored_set(files, parts, model)
    assert encoded["images"] == 1  # of 5; a shard has 4
    content = [{path.name: path.read_bytes() for path in shards(f)} for f in (whole, parts)]
    assert content[0] == content[1]
    assert not list(parts.rglob(".eligo-*"))


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", ["truncated", "garbage", "another shard", "another encoder"])
def test_damaged_shards_are_computed_again(files, tmp_path, damage, caplog, encoded):
    model, folder = model_of(files), tmp_path / "cache"
    expected = score_set(model, stored_set(files, folder, model))
    first, second = shards(folder, "images")
    if damage == "truncated":
        first.write_bytes(first.read_bytes()[:-10])
    elif damage == "garbage":
        first.write_bytes(b"\0" * 100)
    elif damage == "another shard":
        first.write_bytes(second.read_bytes())
    else:
        other = model_of(files, image_std=(0.1, 0.2, 0.3))
        stored_set(files, tmp_path / "other", other)
        (same,) = (path for path in shards(tmp_path / "other") if path.name == first.name)
        shutil.copy(same, first)
    encoded["images"] = 0
    again = stored_set(files, folder, model)
    assert encoded["images"] in (1, 4)
    assert f"{first}: " in caplog.text
    assert "its features are computed again" in caplog.text
    assert torch.equal(score_set(model, again), expected)


@pytest.mark.parametrize("content", ["{", '{"a.png": [1, 2, "xyz"]}', '{"a.png": [1]}', "[]"])
def test_damaged_list_of_files_is_written_again(files, tmp_path, content, caplog, encoded):
    model, folder = model_of(files), tmp_path / "cache"
    stored_set(files, folder, model)
    before = (folder / "files.json").read_text()
    (folder / "files.json").write_text(content)
    stored_set(files, folder, model)
    assert f"{folder / 'files.json'}" in caplog.text
    assert "the image files are read again" in caplog.text
    assert json.loads((folder / "files.json").read_text()) == json.loads(before)
    assert encoded["images"] == 5


def test_processes_share_whole_shards(files, tmp_path):
    cache = FeatureCache(tmp_path, model_of(files))
    Part = namedtuple("Part", "index count")
    shares = []
    for index in range(3):
        cache.processes = Part(index, 3)
        shares.append(cache._share(list(range(22)), 4))
    assert shares == [[*range(4), *range(12, 16)], [*range(4, 8), *range(16, 20)],
                      [*range(8, 12), 20, 21]]  # fmt: skip


@pytest.mark.usefixtures("small_shards")
def test_two_processes_share_the_work(files, tmp_path):
    """They write the shards of one process, and train as it does."""
    folders = []
    for name in ("one", "two"):
        config = config_of(files, tmp_path / f"cache_{name}", train__name=name)
        (tmp_path / f"{name}.json").write_text(config.model_dump_json())
        folders.append((config.train.folder, config.data.cache))
    script = Path(__file__).with_name("cache_in_two.py")
    with two_processes(script, tmp_path / "two.json"):
        one = train_model(config_of(files, tmp_path / "cache_one", train__name="one"))
    content = [{path.name: path.read_bytes() for path in shards(cache)} for _, cache in folders]
    assert len(content[0]) == 5
    assert content[0] == content[1]
    weights = [load_file(run / "last" / "retriever.safetensors") for run, _ in folders]
    assert one.folder == folders[0][0]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=2e-4)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__augment": True}, "augment: got true with data.cache, .* --data.no_augment"),
        ({"model__encoders__backbone_lr": 0.1}, "cache: got a folder with .*backbone_lr 0.1"),
        ({"model__encoders__text": None}, "data.cache: needs pretrained encoders"),
        ({"model__encoders__vision": None}, "data.cache: needs pretrained encoders"),
    ],
)
def test_features_that_change_are_refused(files, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of(files, tmp_path / "cache", **changes)


def test_small_disk_is_refused_before_anything_is_computed(files, tmp_path, monkeypatch, encoded):
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"need 0.01 GB, but 0.10 GB are free there; choose a fol"):
        stored_set(files, tmp_path / "cache", model_of(files))
    assert encoded == {"images": 0, "texts": 0}


def test_features_beyond_float16_are_refused(files, tmp_path):
    model = model_of(files)
    with torch.no_grad():
        model.image_encoder.backbone.layernorm.weight.fill_(1e6)
    with pytest.raises(InputError, match=r"not finite in float16; use --data.cache_dtype float32"):
        stored_set(files, tmp_path / "cache", model)
    stored_set(files, tmp_path / "cache", model, dtype="float32")


def test_smoke_run_computes_no_cache(files, tmp_path):
    assert config_of(files, tmp_path / "cache").smoke().data.cache is None


def test_command_evaluates_with_a_cache(files, tmp_path, capsys, encoded):
    run = train_model(config_of(files, tmp_path / "cache"))
    data = f"--captions {files['data']['captions']} --images {files['data']['images']}"
    command = f"patches evaluate {run.folder} {data} --split validation --json --device cpu".split()
    main(command)
    plain = json.loads(capsys.readouterr().out)
    encoded["images"] = 0
    main([*command, "--cache", str(tmp_path / "cache")])
    assert encoded["images"] == 0
    assert json.loads(capsys.readouterr().out) == plain
    assert main(["patches", "evaluate", str(run.folder), "--cache", "c"]) == 2
    assert "--cache: stores features of files; give --captions" in capsys.readouterr().err


# ------------------------------------------------------------------ mirrored images


def test_mirrored_images_are_stored_beside_the_others(files, tmp_path, encoded):
    model = model_of(files)
    given = read_captions(config_of(files).data, "train")
    stored = FeatureCache(tmp_path / "c", model, dtype="float32").features(
        given, dense=False, num_mirrored=3
    )
    assert encoded["images"] == len(given) + 3
    assert len(stored.mirrored_rows) == 3
    with torch.no_grad():
        pictures = model.image_encoder.prepare([Image.open(i.path) for i in given[:3]]).flip(-1)
        expected = model.image_encoder.states(model.image_encoder.normalise(pictures))
    torch.testing.assert_close(stored.images.gather(stored.mirrored_rows), expected)


def test_half_of_the_examples_are_mirrored_unless_the_caption_names_a_side(files, tmp_path):
    config = config_of(files, tmp_path / "c", data__cache_mirrored=True)
    source = CachedSource(config.data, model_of(files), dense=False)
    train, validation = source._splits
    assert not validation.mirrored_rows
    pairs = CachedPairs(train, source.model.text_encoder)
    seen = {True: set(), False: set()}
    torch.manual_seed(0)
    for _ in range(20):
        for index, (number, caption) in enumerate(pairs.pairs):
            sided = "left" in train.given[number].captions[caption]
            is_mirrored = pairs[index][0] == train.mirrored_rows[number]
            assert is_mirrored or pairs[index][0] in (
                train.image_rows[number], train.mirrored_rows[number]
            )  # fmt: skip
            seen[sided].add(is_mirrored)
    assert seen == {True: {False}, False: {True, False}}


def test_a_set_without_any_readable_image_is_refused(files, tmp_path):
    given = read_captions(config_of(files).data, "val")
    for image in given:
        image.path.write_bytes(b"no image")
    with pytest.raises(InputError, match="none of 5 evaluated images can be read"):
        stored_set(files, tmp_path / "c", model_of(files))
