"""Worker processes: the same batches, resumed runs and evaluations for any number of them."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from pixel_files import exported

from eligo.config import load_config
from eligo.pixels import PixelsTrainConfig
from eligo.pixels.config import (
    AugmentConfig,
    InputsConfig,
    JsonlDataConfig,
    TextConfig,
    WordsTextConfig,
)
from eligo.pixels.data.file_source import AugmentedImages, FileSource
from eligo.pixels.text.encoders import WordsEncoder
from eligo.pixels.training.task import PixelsTask
from eligo.train import Progress, fit
from worker_cases import WORKERS, assert_same_batches, assert_same_weights, sent

WORDS = WordsTextConfig(dim=16)
CROP = {"scales": (0.75, 1.25), "crop": (40, 72)}


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("rooms") / "jsonl", "jsonl", train=14, sensor=True)


def source(rooms: Path, workers: int | None, **augment) -> FileSource:
    data = JsonlDataConfig(
        train=rooms / "train.jsonl", test=rooms / "test.jsonl", classes=rooms / "classes.txt",
        num_workers=workers,
    )  # fmt: skip
    settings = InputsConfig(), TextConfig(max_tags=14, encoder=WORDS), WordsEncoder(WORDS)
    return FileSource(data, *settings, AugmentConfig(**augment), torch.device("cpu"))


@pytest.mark.parametrize("augment", [{}, CROP], ids=["mirror", "scale and crop"])
def test_batches_are_equal_for_any_number_of_workers(rooms: Path, augment: dict):
    plain = list(islice(source(rooms, 0, **augment).batches(4, 3, 0, 0, 1), 5))
    for workers in WORKERS[1:]:
        found = list(islice(source(rooms, workers, **augment).batches(4, 3, 2, 0, 1), 3))
        assert_same_batches(found, plain[2:])  # from the middle of an epoch on


@pytest.mark.parametrize("words", ["predicted", "none", "shuffled"])
def test_evaluated_images_are_equal_for_any_number_of_workers(rooms: Path, words):
    plain = list(source(rooms, 0).images("test", words, 3))
    for workers in WORKERS[1:]:
        assert_same_batches(list(source(rooms, workers).images("test", words, 3)), plain)


def test_images_are_sent_to_workers_without_their_vectors(rooms: Path):
    images = source(rooms, 0)._images("train")
    copy = sent(AugmentedImages(images, AugmentConfig(mirror=False)))
    assert copy.images.table is None
    assert_same_batches([copy[3]], [images.read(3)])


def config_of(rooms: Path, out: Path, name: str, workers: int | None) -> PixelsTrainConfig:
    files = {"train": rooms / "train.jsonl", "classes": rooms / "classes.txt"}
    data = {"kind": "jsonl", **files, "words_are": "oracle", "num_workers": workers}
    return load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace({
        "data": data, "train.out": out, "train.name": name, "train.batch_size": 4,
        "train.total_steps": 8, "train.evaluate_every": 5, "train.checkpoint_every": 5,
        "augment": {"scales": CROP["scales"], "crop": (48, 64)},
    })  # fmt: skip


@pytest.mark.gpu
def test_no_sync_in_a_step_from_files_on_a_gpu(rooms: Path, tmp_path: Path):
    task, device = PixelsTask(config_of(rooms, tmp_path, "run", 1)), torch.device("cuda")
    task.to(device)
    stream = task.batches(0, 0, 1, device)
    task.step(next(stream), Progress(0, 4)).losses["segmentation"].backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = next(stream)
        task.step(batch, Progress(1, 4)).losses["segmentation"].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch.rgb.device.type == "cuda"


def test_run_resumed_with_other_workers_equals_the_uninterrupted_one(rooms: Path, tmp_path: Path):
    """14 images less one for validation: an epoch has 3 steps, so step 5 is inside one."""
    whole = config_of(rooms, tmp_path, "whole", 0)
    expected = fit(PixelsTask(whole), whole.train)
    first, second = (config_of(rooms, tmp_path, "parts", workers) for workers in (3, 1))
    half = fit(PixelsTask(first), first.train, on_evaluate=lambda *_: True)
    assert half.last_step == 5
    found = fit(PixelsTask(second), second.train, resume=True)
    assert found.last_step == 8
    assert found.best == expected.best
    assert_same_weights(found.folder / "last", expected.folder / "last")
