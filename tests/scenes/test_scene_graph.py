"""Scene graphs: reproducible per scene, disjoint splits, values within the config."""

import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import eligo.scenes
from eligo.errors import InputError
from eligo.scenes import (
    ROOMS,
    SceneConfig,
    binding_tags,
    class_tags,
    draw_captions,
    draw_dense_captions,
    draw_questions,
    draw_scenes,
    render,
    words,
)
from eligo.scenes.graph import GRID, SPLITS, UNIT
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.words import COLOUR, SHAPE
from strategies import production, quick

SMALL = SceneConfig(height=48, width=64, camouflaged=2, twins=True)
BOUND = SceneConfig(height=48, width=64, binding=True)


def differences(one: object, other: object) -> list[str]:
    """Names of the tensors that differ."""
    return [
        field.name
        for field in fields(one)  # pyright: ignore[reportArgumentType]
        if torch.is_tensor(getattr(one, field.name))
        and not torch.equal(getattr(one, field.name).cpu(), getattr(other, field.name).cpu())
    ]


def everything(config: SceneConfig, split: str, indices: torch.Tensor, device: str = "cpu") -> list:
    """Graph, language, tags and images of scenes, as dataclasses of tensors."""
    graph = draw_scenes(config, split, indices, device)  # pyright: ignore[reportArgumentType]
    tags = [
        binding_tags(graph, 16, source=source)
        if config.binding
        else class_tags(graph, source=source, precision=0.8, recall=0.8)
        for source in ("own", "shuffled")
    ]
    texts = [draw_questions(graph, 5), draw_captions(graph, 3), draw_dense_captions(graph)]
    return [graph, *texts, *tags, render(graph)]


@settings(parent=quick, max_examples=12)
@given(
    st.lists(st.integers(0, 2**40), min_size=2, max_size=6),
    st.sampled_from([SMALL, BOUND]),
    st.sampled_from(SPLITS),
    st.data(),
)
def test_scene_does_not_depend_on_its_batch(indices, config, split, data) -> None:
    together = everything(config, split, torch.tensor(indices))
    order = data.draw(st.permutations(range(len(indices))))
    shuffled = everything(config, split, torch.tensor([indices[place] for place in order]))
    alone = everything(config, split, torch.tensor(indices[1:2]))
    for whole, mixed, single in zip(together, shuffled, alone, strict=True):
        for field in fields(whole):
            value = getattr(whole, field.name)
            if torch.is_tensor(value) and field.name != "kind":
                assert torch.equal(value[order], getattr(mixed, field.name)), field.name
                assert torch.equal(value[1:2], getattr(single, field.name)), field.name
            elif torch.is_tensor(value) and value.ndim == 2:  # kinds of questions
                assert torch.equal(value[1:2], getattr(single, field.name))


def test_slices_keep_the_scenes() -> None:
    graph = draw_scenes(SMALL, "train", range(10))
    assert not differences(graph[3:7], draw_scenes(SMALL, "train", range(3, 7)))
    assert not differences(render(graph)[3:7], render(graph[3:7]))


def test_fewer_questions_and_captions_are_a_prefix() -> None:
    graph = draw_scenes(SMALL, "train", range(10))
    assert torch.equal(draw_questions(graph, 6).words[:, :2], draw_questions(graph, 2).words)
    assert torch.equal(draw_captions(graph, 6).words[:, :2], draw_captions(graph, 2).words)


def test_splits_and_seeds_share_no_scene() -> None:
    graphs = [draw_scenes(SceneConfig(), split, range(500)) for split in SPLITS]
    graphs.append(draw_scenes(SceneConfig(seed=1), "train", range(500)))
    for number, graph in enumerate(graphs):
        for other in graphs[:number]:
            assert not (graph.keys[:, None] == other.keys).any()
            same = (graph.x == other.x).all(-1) & (graph.y == other.y).all(-1)
            assert not same.any()


def test_held_out_pairs_occur_only_in_the_test_split() -> None:
    assert len(set(words.HELD_OUT)) == len({shape for _, shape in words.HELD_OUT}) == 8
    for config in (SceneConfig(), ROOMS):
        for split in SPLITS:
            graph = draw_scenes(config, split, range(2000))
            pairs = graph.attributes[graph.exists][:, [COLOUR, SHAPE]].unique(dim=0).tolist()
            found = {tuple(pair) for pair in pairs} & set(words.HELD_OUT)
            assert found == (set(words.HELD_OUT) if split == "test" else set())
            assert bool(graph.held_out.any()) == (split == "test")
            # All other pairs occur everywhere.
            assert len(pairs) == (64 if split == "test" else 56)


def test_graph_follows_the_config() -> None:
    graph = draw_scenes(ROOMS, "train", range(2000))
    count = [(graph.exists & (graph.kind == kind)).sum(1) for kind in range(4)]
    assert set(count[0].tolist()) == set(range(ROOMS.min_objects, ROOMS.max_objects + 1))
    for kind, most in zip(count[1:], (ROOMS.decoys, 2, 2), strict=True):
        assert set(kind.tolist()) == set(range(most + 1))
    cells = (graph.y * GRID // UNIT) * GRID + graph.x * GRID // UNIT
    assert all(len(set(row.tolist())) == graph.exists.shape[1] for row in cells)
    # Away from grid lines, so that row, column and quarter are unambiguous.
    assert ((graph.x % (UNIT // GRID)) > 250).all()
    assert (graph.depth > 400).all()
    for index, names in enumerate(words.VALUES):
        values = graph.attributes[..., index][graph.askable]
        share = torch.bincount(values, minlength=len(names)) / len(values)
        assert ((share * len(names)) - 1).abs().max() < 0.1


def test_scene_with_one_object() -> None:
    config = SceneConfig(min_objects=1, max_objects=1, decoys=0)
    graph = draw_scenes(config, "train", range(50))
    captions, dense = draw_captions(graph), draw_dense_captions(graph)
    assert captions.deciding.sum(-1).unique().tolist() == [1]
    assert (dense.relation == -1).all()
    assert dense.text(0).count(".") == 1
    draw_questions(graph, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_objects": 5, "max_objects": 4},
        {"max_objects": 9},
        {"radii": (0.1, 0.05, 0.12)},
        {"radii": (0.05, 0.1, 0.2)},
        {"decoys": 4, "camouflaged": 2, "painted": 2, "max_objects": 9},
        {"objects": 3},
    ],
)
def test_invalid_configs_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        SceneConfig(**wrong)


def test_invalid_splits_are_refused() -> None:
    with production(), pytest.raises(InputError, match="train, validation, test; got 'dev'"):
        draw_scenes(SceneConfig(), "dev", range(2))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "draw", [lambda g: draw_questions(g, 1), draw_captions, draw_dense_captions]
)
def test_text_of_scenes_with_painted_objects_is_refused(draw) -> None:
    graph = draw_scenes(ROOMS, "train", range(2))
    with pytest.raises(InputError, match="painted=2, set painted=0"):
        draw(graph)


def test_public_names() -> None:
    for name in eligo.scenes.__all__:
        assert getattr(eligo.scenes, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = eligo.scenes.nothing
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    light = "import sys, eligo.scenes; eligo.scenes.SceneConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.parametrize("config", [SMALL, BOUND])
def test_cuda_makes_the_same_scenes(config: SceneConfig) -> None:
    indices = torch.arange(200)
    here, there = everything(config, "test", indices), everything(config, "test", indices, "cuda")
    for ours, theirs in zip(here[:-1], there[:-1], strict=True):
        assert not differences(ours, theirs)
    assert torch.equal(here[-1].instances, there[-1].instances.cpu())
    assert torch.equal(here[-1].labels, there[-1].labels.cpu())
    assert torch.equal(here[-1].depth, there[-1].depth.cpu())
    gap = (here[-1].rgb.int() - there[-1].rgb.cpu().int()).abs()
    assert (gap <= 1).float().mean() >= 0.999
