"""A model told only some of what is there: which words, and the command that measures it."""

import json
from pathlib import Path

import pytest
import torch

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import PixelsTrainConfig, train_model
from eligo.pixels.data.scene_source import PARTIAL_TAGGINGS, PartialTags, SceneSource
from eligo.pixels.training.task import PixelsTask

TINY = load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace({"data.test_images": 12})


def masks(source, size: int) -> torch.Tensor:
    found = [batch.text.mask for batch in source.images("test", "oracle", size)]
    return torch.cat(found)


def test_partial_tags():
    source = PixelsTask(TINY).source
    assert isinstance(source, SceneSource)
    tags = source.scenes("test").tags("oracle")
    assert tags.labels[:, :2].eq(torch.tensor([0, 1])).all()  # wall and floor come first
    whole = masks(source, 5)
    less, one = (masks(PartialTags(source, told), 5) for told in PARTIAL_TAGGINGS)
    assert (whole & ~less).sum(1).eq(1).all()
    assert not (whole & ~less)[:, :2].any()
    assert torch.equal(one[:, 2:], whole[:, 2:] & ~less[:, 2:])  # the one that is else left out
    assert one[:, :2].all()
    assert len({tuple(row) for row in one.tolist()}) > 2  # not always the first
    for told, found in zip(PARTIAL_TAGGINGS, (less, one), strict=True):
        assert torch.equal(masks(PartialTags(source, told), 3), found)  # whatever the batch


def test_sources_without_true_tags_are_refused():
    source = PixelsTask(TINY.replace({"text.source": "labels"})).source
    with pytest.raises(InputError, match=r"data\.kind scenes"):
        PartialTags(source, PARTIAL_TAGGINGS[0])
    with pytest.raises(InputError, match=r"data\.kind scenes"):
        PartialTags(PixelsTask(TINY.replace({"preset": 0})).source, PARTIAL_TAGGINGS[0])


def test_command(capsys, tmp_path: Path):
    run = train_model(TINY.replace({"train.out": tmp_path, "train.total_steps": 1})).folder
    asked = ["evaluate", run, "--some_tags", "--classes", "--device", "cpu", "--json"]
    assert main(["pixels", *map(str, asked)]) == 0
    found = json.loads(capsys.readouterr().out)
    names = ["oracle, one thing unnamed", "oracle, one thing named"]
    assert [row["words"] for row in found["metrics"]][-2:] == names
    assert {row["images"] for row in found["metrics"]} == {12}
    assert set(names) < set(found["iou"][0])
