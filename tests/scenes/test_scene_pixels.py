"""Images, labels, depth and tags, checked with the renderer of `pixel_oracle`."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from pixel_oracle import UNSURE, cover, owners
from scene_oracle import CAMOUFLAGED, DECOY, PAINTED, class_of, objects, things

from eligo.errors import InputError
from eligo.scenes import (
    ROOMS,
    Rendered,
    SceneConfig,
    binding_tags,
    class_tags,
    draw_questions,
    draw_scenes,
    label_names,
    render,
    swap_twins,
    words,
)
from eligo.scenes.painter import render_all

WORLDS = {
    "rooms": ROOMS,
    "default": SceneConfig(height=112, width=112),
    "binding": SceneConfig(height=96, width=128, binding=True, max_objects=4),
}
SCENES = 100
CHUNKS = 10  # of SCENES each: the oracle renders 1,000 scenes of each of two worlds


@cache
def painted(world: str) -> Rendered:
    return painted_chunk(world, 0)


def painted_chunk(world: str, chunk: int) -> Rendered:
    scenes = range(chunk * SCENES, (chunk + 1) * SCENES)
    return render(draw_scenes(WORLDS[world], "test", scenes))


@pytest.mark.parametrize("world", ["rooms", "default"])
def test_pixels_match_the_oracle(world: str) -> None:
    darkness = {texture: [0, 0] for texture in words.TEXTURES}
    for chunk in range(CHUNKS):
        check_pixels(painted_chunk(world, chunk), darkness)
    shares = {texture: dark / total for texture, (dark, total) in darkness.items()}
    assert shares["plain"] == 0
    assert all(0.2 < shares[texture] < 0.6 for texture in words.TEXTURES[1:]), shares


def check_pixels(shown: Rendered, darkness: dict[str, list[int]]) -> None:
    """Checks every pixel; adds to (dark pixels, pixels) of each texture."""
    graph, config = shown.graph, shown.graph.config
    rgb, instances = shown.rgb.int().numpy(), shown.instances.numpy()
    depth = shown.depth.numpy()
    for scene in range(SCENES):
        there = things(graph, scene)
        seen_by, stands_at = owners(there, config.height, config.width)
        sure = stands_at != UNSURE
        assert sure.mean() > 0.8
        assert (instances[scene] == stands_at)[sure].all()
        for thing in there:
            mine = seen_by == thing.slot + 1
            here = rgb[scene][:, mine]  # (3, pixels)
            if thing.kind == DECOY:
                tones = np.array([250, 6])[:, None, None]
            else:
                colour = np.array(words.COLOUR_RGB[words.COLOURS.index(thing.colour)])
                tones = np.stack([colour, colour * 45 // 100])[:, :, None]
            far = abs(here - tones).max(1)  # (tones, pixels)
            assert (far.min(0) <= 6).all()
            if thing.kind != DECOY:
                darkness[thing.texture][0] += int((far.argmin(0) == 1).sum())
                darkness[thing.texture][1] += here.shape[1]
            if thing.solid:
                assert np.allclose(
                    depth[scene][instances[scene] == thing.slot + 1], thing.depth / 1000
                )
        room = rgb[scene][:, seen_by == 0]
        floor = (np.arange(config.height) + 0.5) * 4096 / config.height >= int(graph.horizon[scene])
        floor = np.broadcast_to(floor[:, None], seen_by.shape)[seen_by == 0]
        wall_rgb, floor_rgb = words.WALL_RGB[graph.wall[scene]], words.FLOOR_RGB[graph.floor[scene]]
        base = np.where(floor, np.array(floor_rgb)[:, None], np.array(wall_rgb)[:, None])
        assert (abs(room - base) <= 22).all()


@pytest.mark.parametrize("world", ["rooms", "default"])
def test_enough_of_every_object_is_visible(world: str) -> None:
    shown = painted(world)
    visible = shown.visible_pixels()
    for scene in range(SCENES):
        for thing in objects(shown.graph, scene):
            _, maybe = cover(thing, *shown.rgb.shape[-2:])
            pixels = int(visible[scene, thing.slot])
            assert pixels == int((shown.instances[scene] == thing.slot + 1).sum())
            assert pixels >= 0.35 * maybe.sum()
            assert pixels >= 8


@pytest.mark.parametrize("world", ["rooms", "default", "binding"])
def test_labels_follow_instances(world: str) -> None:
    shown = painted(world)
    graph, names = shown.graph, label_names(shown.graph.config)
    labels = shown.labels.numpy()
    rows = (np.arange(shown.rgb.shape[2]) + 0.5) * 4096 / shown.rgb.shape[2]
    for scene in range(SCENES):
        room = np.where(rows >= int(graph.horizon[scene]), 1, 0)[:, None]
        expected = np.broadcast_to(room, labels[scene].shape).copy()
        for thing in things(graph, scene):
            if thing.solid:
                if graph.config.binding and thing.kind != DECOY:
                    code = words.COLOURS.index(thing.colour) * 4
                    code += words.TEXTURES.index(thing.texture)
                    name = words.NONCE[int(graph.binding[scene, code])]
                elif graph.config.twins:
                    name = class_of(thing, graph.twin[scene].tolist())
                else:
                    name = class_of(thing, [False] * 3)
                expected[shown.instances[scene].numpy() == thing.slot + 1] = names.index(name)
        assert (labels[scene] == expected).all()


def test_camouflage_is_only_in_depth_and_painted_objects_only_in_rgb() -> None:
    shown = painted("rooms")
    graph = shown.graph
    without = render(replace(graph, exists=graph.exists & (graph.kind != CAMOUFLAGED)))
    assert torch.equal(shown.rgb, without.rgb)
    assert not torch.equal(shown.depth, without.depth)
    hidden = shown.visible_pixels()[graph.exists & (graph.kind == CAMOUFLAGED)]
    assert (hidden >= 8).all()
    # They occlude nothing that is visible in RGB.
    visible = graph.kind != CAMOUFLAGED
    assert torch.equal(shown.visible_pixels()[:, visible], without.visible_pixels()[:, visible])

    without = render(replace(graph, exists=graph.exists & (graph.kind != PAINTED)))
    assert not torch.equal(shown.rgb, without.rgb)
    assert torch.equal(shown.depth, without.depth)
    assert torch.equal(shown.labels, without.labels)


def test_sensor_depth_is_noisy_and_has_holes() -> None:
    shown = painted("rooms")
    noisy, valid = shown.sensor_depth()
    exact = shown.depth
    sigma = 0.0012 + 0.0019 * (exact - 0.4) ** 2
    error = ((noisy - exact) / sigma)[valid]
    assert (noisy[~valid] == 0).all()
    assert abs(error.mean()) < 0.01
    assert abs(error.std() - 1) < 0.02
    assert error.abs().max() < 4
    assert 0.005 < (~valid).float().mean() < 0.05


@pytest.mark.parametrize("size", [(96, 128), (128, 96), (97, 33), (224, 224), (336, 336)])
def test_any_resolution_is_rendered(size: tuple[int, int]) -> None:
    config = SceneConfig(height=size[0], width=size[1])
    graph = draw_scenes(config, "train", range(3))
    shown = render(graph)
    assert shown.rgb.shape == (3, 3, *size)
    assert shown.labels.shape == shown.depth.shape == (3, *size)
    assert (shown.visible_pixels()[graph.askable] > 0).all()
    # The graph and its questions do not depend on the image size.
    usual = draw_scenes(SceneConfig(), "train", range(3))
    assert torch.equal(graph.attributes, usual.attributes)
    assert torch.equal(draw_questions(graph, 4).words, draw_questions(usual, 4).words)


def test_class_tags_are_the_classes_of_the_label_map() -> None:
    shown = painted("rooms")
    tags, swapped = class_tags(shown.graph), class_tags(swap_twins(shown.graph))
    other = {**words.TWINS, **{second: first for first, second in words.TWINS.items()}}
    names = label_names(shown.graph.config)
    for scene in range(SCENES):
        present = {names[label] for label in shown.labels[scene].unique().tolist()}
        assert set(tags.text(scene)) == present
        assert len(tags.text(scene)) == len(present)
        assert [names[label] for label in tags.labels[scene] if label >= 0] == tags.text(scene)
        assert set(swapped.text(scene)) == {other.get(name, name) for name in present}
    assert {name for scene in range(SCENES) for name in tags.text(scene)} == set(names)


def test_swapped_twins_look_the_same() -> None:
    shown = painted("rooms")
    swapped = render(swap_twins(shown.graph))
    assert torch.equal(shown.rgb, swapped.rgb)
    changed = shown.labels != swapped.labels
    assert changed.any()
    firsts = [words.LABELS.index(name) for name in words.TWINS]
    seconds = [words.LABELS.index(name) for name in words.TWINS.values()]
    twins = torch.tensor(firsts + seconds, dtype=torch.uint8)
    assert torch.equal(changed, torch.isin(shown.labels, twins))
    assert 0.4 < shown.graph.twin.float().mean() < 0.6


@pytest.mark.parametrize(("precision", "recall"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.5), (0.6, 0.7)])
def test_noisy_tags_have_the_given_precision_and_recall(precision: float, recall: float) -> None:
    graph = draw_scenes(ROOMS, "test", range(1000))
    true, noisy = class_tags(graph), class_tags(graph, precision=precision, recall=recall)
    right = sum(len(set(true.text(scene)) & set(noisy.text(scene))) for scene in range(len(graph)))
    assert abs(right / noisy.mask.sum() - precision) < 0.02
    assert abs(right / true.mask.sum() - recall) < 0.02


def test_missing_and_shuffled_tags() -> None:
    graph = draw_scenes(ROOMS, "test", range(300))
    bound = draw_scenes(WORLDS["binding"], "test", range(300))
    assert not class_tags(graph, source="missing").mask.any()
    assert not binding_tags(bound, 8, source="missing").mask.any()
    assert binding_tags(bound, 8, source="missing").text(0) == []
    own, other = class_tags(graph), class_tags(graph, source="shuffled")
    assert (own.labels != other.labels).any(1).float().mean() > 0.9
    assert abs(own.mask.sum() / other.mask.sum() - 1) < 0.05
    own, other = binding_tags(bound, 8), binding_tags(bound, 8, source="shuffled")
    assert (own.words != other.words).any((1, 2)).all()


@pytest.mark.parametrize("count", [4, 8, 16, 32])
def test_binding_tags_link_every_object_to_its_class(count: int) -> None:
    shown = painted("binding")
    names = label_names(shown.graph.config)
    tags = binding_tags(shown.graph, count)
    assert tags.words.shape == (SCENES, count, 3)
    first = []
    for scene in range(SCENES):
        phrases = [phrase.split() for phrase in tags.text(scene)]
        codes = {(colour, texture): name for colour, texture, name in phrases}
        assert len(codes) == len(phrases) == count
        present = [(t.colour, t.texture) for t in objects(shown.graph, scene)]
        for thing in objects(shown.graph, scene):
            label = shown.labels[scene][shown.instances[scene] == thing.slot + 1].unique()
            assert codes[thing.colour, thing.texture] == names[label.item()]
        assert [names[label] for label in tags.labels[scene]] == [name for *_, name in phrases]
        first.append(tuple(phrases[0][:2]) in present)
    assert 0 < sum(first) < SCENES or count == 4  # objects and distractors are mixed


def test_invalid_tag_requests_are_refused() -> None:
    plain, bound = (draw_scenes(SceneConfig(binding=b), "train", range(2)) for b in (False, True))
    with pytest.raises(InputError, match="use binding_tags"):
        class_tags(bound)
    with pytest.raises(InputError, match="use class_tags"):
        binding_tags(plain, 16)
    with pytest.raises(InputError, match=r"between 8 .* and 32 .*, got 4; lower max_objects"):
        binding_tags(bound, 4)
    with pytest.raises(InputError, match="precision must lie"):
        class_tags(plain, precision=0.0)


def test_rendering_in_chunks_equals_rendering_at_once(monkeypatch):
    monkeypatch.setattr("eligo.scenes.painter._TOGETHER", 2)
    graph = draw_scenes(SceneConfig(height=56, width=56), "train", range(5))
    whole, parts = render(graph), render_all(graph)
    assert torch.equal(whole.rgb, parts.rgb)
    assert torch.equal(whole.instances, parts.instances)
    assert parts.graph is graph
