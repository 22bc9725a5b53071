"""Items of `SceneDataset` equal the scenes of the graph, in any order and any worker."""

import pytest
import torch
from torch.utils.data import DataLoader

from eligo.errors import InputError
from eligo.scenes import (
    ROOMS,
    SceneConfig,
    SceneDataset,
    draw_captions,
    draw_dense_captions,
    draw_questions,
    draw_scenes,
    label_names,
    render,
)
from eligo.scenes.dataset import collate_scenes
from eligo.scenes.question_kinds import FAMILIES, KINDS

SMALL = SceneConfig(height=48, width=64)
PIXELS = ("rgb", "depth", "depth_mask", "labels", "instances")


def same(left, right):
    assert vars(left).keys() == vars(right).keys()
    for name, value in vars(left).items():
        other = getattr(right, name)
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, name


def test_items_equal_the_batched_functions():
    dataset = SceneDataset(SMALL, "validation", 20, num_questions=5, num_captions=3)
    graph = draw_scenes(SMALL, "validation", range(20))
    rendered, questions = render(graph), draw_questions(graph, 5)
    captions, dense = draw_captions(graph, 3), draw_dense_captions(graph)
    for index in (0, 7, 19):
        item = dataset[index]
        assert (item.id, item.index, item.split) == (
            f"validation_{index:06d}",
            index,
            "validation",
        )
        for name in ("rgb", "depth", "labels", "instances"):
            assert torch.equal(getattr(item, name), getattr(rendered, name)[index]), name
        assert item.depth_mask.all()
        valid = [place for place in range(5) if questions.valid[index, place]]
        assert [q.question for q in item.questions] == [questions.text(index, q) for q in valid]
        assert [q.answer for q in item.questions] == [
            questions.answer_text(index, q) for q in valid
        ]
        for place, question in zip(valid, item.questions, strict=True):
            decided = questions.deciding[index, place].nonzero().flatten() + 1
            assert list(question.deciding) == decided.tolist()
            kind = KINDS[int(questions.kind[index, place])]
            assert (question.kind, question.family) == (kind.name, kind.family)
        assert item.captions == tuple(captions.text(index, place) for place in range(3))
        assert item.dense_caption == dense.text(index)


def test_tags_include_every_class_of_the_label_map():
    for config in (SMALL, ROOMS):
        for item in SceneDataset(config, "train", 8).__getitems__(range(8)):
            shown = {label_names(config)[label] for label in item.labels.unique()}
            assert shown <= set(item.tags)  # fully hidden objects are tagged too


def test_items_do_not_depend_on_order_or_batch():
    dataset = SceneDataset(SMALL, "train", 50)
    batch = dataset.__getitems__([31, 2, 31, -1])
    for index, item in zip((31, 2, 31, 49), batch, strict=True):
        same(item, dataset[index])


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_gives_the_same_batches(workers: int):
    dataset = SceneDataset(SMALL, "train", 6, num_questions=2)
    loader = DataLoader(dataset, 3, num_workers=workers, collate_fn=collate_scenes)
    batches = list(loader)
    assert [batch["index"] for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert batches[0]["rgb"].shape == (3, 3, 48, 64)
    assert torch.equal(batches[1]["depth"][2], dataset[5].depth)
    assert batches[1]["questions"][0] == dataset[3].questions


def test_sensor_depth_is_zero_outside_its_mask():
    item = SceneDataset(ROOMS, "train", 3, sensor=True)[1]
    assert not item.depth_mask.all()
    assert (item.depth[~item.depth_mask] == 0).all()
    assert (item.depth[item.depth_mask] > 0.5).all()
    exact = SceneDataset(ROOMS, "train", 3)[1]
    assert (item.depth - exact.depth)[item.depth_mask].abs().max() < 0.5
    assert torch.equal(item.rgb, exact.rgb)


def test_scenes_with_painted_objects_have_no_text():
    item = SceneDataset(ROOMS, "test", 2)[0]
    assert (item.questions, item.captions, item.dense_caption) == ((), (), "")
    with pytest.raises(InputError, match="painted=0"):
        SceneDataset(ROOMS, "test", 2, num_questions=1)[0]


def test_tags_of_binding_scenes_are_phrases():
    item = SceneDataset(SMALL.replace({"binding": True}), "train", 2)[1]
    assert all(len(tag.split()) == 3 for tag in item.tags)


def test_every_question_family_occurs():
    items = SceneDataset(SMALL, "train", 30).__getitems__(range(30))
    assert {question.family for item in items for question in item.questions} == set(FAMILIES)


def test_invalid_arguments_are_refused():
    with pytest.raises(InputError, match="at least one scene, got size 0"):
        SceneDataset(SMALL, "train", 0)
    with pytest.raises(InputError, match="got -1"):
        SceneDataset(SMALL, "train", 2, num_captions=-1)
    with pytest.raises(IndexError, match="scene 2 of 2"):
        SceneDataset(SMALL, "train", 2)[2]
    assert len(list(SceneDataset(SMALL, "train", 2))) == 2  # iteration stops
