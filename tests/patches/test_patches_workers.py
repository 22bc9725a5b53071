"""Worker processes: the same batches, resumed runs and evaluations for any number of them."""

from itertools import islice
from pathlib import Path
from types import MethodType

import pytest
import torch
from patch_models import karpathy

from eligo.patches.config import KarpathyDataConfig, PatchesTrainConfig
from eligo.patches.data.file_source import FileSet, FileSource, PairExamples
from eligo.patches.data.readers import read_captions
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.training.task import PatchesTask
from eligo.train import fit
from worker_cases import WORKERS, assert_same_batches, assert_same_weights, sent


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> KarpathyDataConfig:
    captions, images = karpathy(tmp_path_factory.mktemp("files"), ("train",) * 7 + ("val",) * 5)
    return KarpathyDataConfig(captions=captions, images=images)


@pytest.mark.parametrize("augment", [True, False])
def test_batches_are_equal_for_any_number_of_workers(files: KarpathyDataConfig, augment: bool):
    model = RetrievalModel.tiny()

    def batches(workers: int, start: int, count: int) -> list:
        data = files.replace({"num_workers": workers, "augment": augment})
        return list(islice(FileSource(data, model, dense=False).batches(4, 3, start, 0, 1), count))

    plain = batches(0, 0, 6)
    for workers in WORKERS[1:]:
        assert_same_batches(batches(workers, 2, 4), plain[2:])  # an epoch has 3 steps


def test_evaluated_images_are_equal_for_any_number_of_workers(files: KarpathyDataConfig):
    model, given = RetrievalModel.tiny(), read_captions(files, "val")
    plain = list(FileSet(given, model, num_workers=0).images(2))
    expected = model.image_encoder.prepare(torch.cat(plain))
    assert torch.equal(torch.cat(plain), expected)
    assert [len(batch) for batch in plain] == [2, 2, 1]
    for workers in WORKERS[1:]:
        assert_same_batches(list(FileSet(given, model, num_workers=workers).images(2)), plain)


def test_pairs_are_sent_to_workers_without_the_model(files: KarpathyDataConfig):
    """Its weights may be on a device that a worker must not use."""
    model = RetrievalModel.tiny()
    pairs = PairExamples(read_captions(files, "train"), files, model, dense=False)
    copy = sent(pairs)
    assert not any(isinstance(value, torch.nn.Module) for value in vars(copy).values())
    assert not any(isinstance(value, MethodType) for value in vars(copy).values())
    torch.manual_seed(1)
    one = pairs[3]
    torch.manual_seed(1)
    assert_same_batches([copy[3]], [one])


def test_batches_are_pinned_as_a_whole(files: KarpathyDataConfig, monkeypatch):
    batch = next(FileSource(files, RetrievalModel.tiny(), dense=False).batches(4, 3, 0, 0, 1))
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    assert_same_batches([batch.pin_memory()], [batch])
    assert len(pinned) == 4  # images, ids, mask, image ids


def test_run_resumed_with_other_workers_equals_the_uninterrupted_one(
    files: KarpathyDataConfig, tmp_path: Path
):
    """An epoch has 3 steps, so step 4 is inside one."""

    def config_of(name: str, workers: int) -> PatchesTrainConfig:
        data = files.replace({"num_workers": workers}).model_dump()
        changes = {"data": data, "train.out": tmp_path, "train.name": name, "train.batch_size": 4,
                   "train.total_steps": 7, "train.evaluate_every": 4,
                   "train.checkpoint_every": 4}  # fmt: skip
        return PatchesTrainConfig().smoke().replace(changes)

    whole = config_of("whole", 0)
    expected = fit(PatchesTask(whole), whole.train)
    first, second = (config_of("parts", workers) for workers in (3, 1))
    assert fit(PatchesTask(first), first.train, on_evaluate=lambda *_: True).last_step == 4
    found = fit(PatchesTask(second), second.train, resume=True)
    assert found.last_step == 7
    assert found.best == expected.best
    assert_same_weights(found.folder / "last", expected.folder / "last")
