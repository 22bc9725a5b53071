"""Evaluation with only some of the tags: which tags are given, and the command."""

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


def test_given_tags_of_each_kind():
    source = PixelsTask(TINY).source
    assert isinstance(source, SceneSource)
    tags = source.scenes("test").tags("oracle")
    assert tags.labels[:, :2].eq(torch.tensor([0, 1])).all()  # wall and floor are first
    whole = masks(source, 5)
    less, one = (masks(PartialTags(source, tagging), 5) for tagging in PARTIAL_TAGGINGS)
    assert (whole & ~less).sum(1).eq(1).all()
    assert not (whole & ~less)[:, :2].any()
    assert torch.equal(
        one[:, 2:], whole[:, 2:] & ~less[:, 2:]
    )  # exactly the tag that is otherwise left out
    assert one[:, :2].all()
    assert len({tuple(row) for row in one.tolist()}) > 2  # not always the first
    for tagging, found in zip(PARTIAL_TAGGINGS, (less, one), strict=True):
        assert torch.equal(masks(PartialTags(source, tagging), 3), found)  # for any batch


def test_sources_without_true_tags_are_refused():
    source = PixelsTask(TINY.replace({"text.source": "labels"})).source
    with pytest.raises(InputError, match=r"data\.kind scenes"):
        PartialTags(source, PARTIAL_TAGGINGS[0])
    with pytest.raises(InputError, match=r"data\.kind scenes"):
        PartialTags(PixelsTask(TINY.replace({"preset": 0})).source, PARTIAL_TAGGINGS[0])


def test_evaluate_command_with_partial_tags(capsys, tmp_path: Path):
    run = train_model(TINY.replace({"train.out": tmp_path, "train.total_steps": 1})).folder
    arguments = ["evaluate", run, "--some_tags", "--classes", "--device", "cpu", "--json"]
    assert main(["pixels", *map(str, arguments)]) == 0
    found = json.loads(capsys.readouterr().out)
    names = ["oracle, one thing unnamed", "oracle, one thing named"]
    assert [row["words"] for row in found["metrics"]][-2:] == names
    assert {row["images"] for row in found["metrics"]} == {12}
    assert set(names) < set(found["iou"][0])
