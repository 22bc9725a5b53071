"""Rooms as batches: images, words, splits, and no device synchronisation."""

import pytest
import torch
from pixel_files import SCENES
from test_pixels_traced import Watch

from eligo.errors import InputError
from eligo.pixels.config import (
    AugmentConfig,
    InputsConfig,
    ScenesDataConfig,
    TextConfig,
    WordsTextConfig,
)
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.text.encoders import WordsEncoder
from eligo.scenes import SceneDataset, class_tags, draw_scenes

TEXT = TextConfig(max_tags=14, encoder=WordsTextConfig(dim=16))
CPU = torch.device("cpu")


def source(text: TextConfig = TEXT, **changes) -> SceneSource:
    config = ScenesDataConfig().replace(
        {"scenes": SCENES, "train_images": 10, "validation_images": 5, "test_images": 6, **changes}
    )
    encoder = WordsEncoder(WordsTextConfig(dim=16)) if text.source != "none" else None
    return SceneSource(config, InputsConfig(), text, encoder, AugmentConfig(), CPU)


def test_batches_hold_images_and_words():
    batches = list(source().images("test", "oracle", 4))
    assert [len(batch.rgb) for batch in batches] == [4, 2]
    items = SceneDataset(SCENES, "test", 6, num_questions=0).__getitems__(list(range(6)))
    encoder = WordsEncoder(WordsTextConfig(dim=16))
    for item, row in zip(items[4:], range(2), strict=True):
        assert torch.equal(batches[1].labels[row], item.labels)
        depth, text = batches[1].depth, batches[1].text
        assert depth is not None
        assert text is not None
        torch.testing.assert_close(depth[row, 0], (item.depth.clamp(max=10) / 10 - 0.48) / 0.28)
        own = encoder.encode(item.tags)
        torch.testing.assert_close(text.embeddings[row, : len(own)], own)
        assert text.mask[row].sum() == len(own)
        assert text.provenance == "oracle"


def test_each_provenance_has_its_own_words():
    found = source()
    assert found.provenances[0] == "predicted"  # ground truth is never first
    texts = {p: next(found.images("test", p, 6)).text for p in found.provenances}
    assert texts["none"] is None
    masks = {p: text.mask.sum(1).tolist() for p, text in texts.items() if text is not None}
    assert len({tuple(mask) for mask in masks.values()}) == 3
    labels = source(TEXT.replace({"source": "labels"}))
    text = next(labels.images("test", "predicted", 2)).text
    assert text is not None
    assert text.mask.shape == (2, 14)
    assert text.mask.all()
    assert source(TEXT.replace({"source": "none"})).provenances == ("none",)


def test_predicted_tags_have_the_given_precision_and_recall():
    found = source(precision=0.7, recall=0.6)
    tags = found.scenes("test").tags("predicted")
    graph = draw_scenes(SCENES, "test", range(6))
    assert torch.equal(tags.labels, class_tags(graph, precision=0.7, recall=0.6).labels)


def test_only_the_first_tags_are_used():
    text = next(source(TEXT.replace({"max_tags": 3})).images("test", "oracle", 6)).text
    assert text is not None
    assert text.mask.shape == (6, 3)


def test_number_of_binding_phrases_varies():
    scenes = SCENES.replace({"binding": True, "twins": False, "camouflaged": 0, "painted": 0,
                             "max_objects": 4})  # fmt: skip
    found = source(scenes=scenes, phrases=(4, 8, 32))
    stream = found.batches(2, seed=0, start_step=0, rank=0, world_size=1)
    texts = [next(stream).text for _ in range(20)]
    assert {text.mask.shape[1] for text in texts if text is not None} == {4, 8, 32}
    assert all(text is not None and text.mask.all() for text in texts)
    assert len(found.classes) == 13
    assert found.provenances == ("predicted", "none", "shuffled")
    text = next(found.images("test", "shuffled", 2)).text
    assert text is not None
    assert text.mask.shape == (2, 32)
    with pytest.raises(ValueError, match="phrases"):
        ScenesDataConfig(scenes=scenes, phrases=(3,))


def test_epochs_visit_every_scene_once_and_ranks_split_batches():
    found = source()
    stream = found.batches(5, seed=1, start_step=0, rank=0, world_size=1)
    images = torch.cat([next(stream).rgb for _ in range(2)])
    assert len(torch.unique(images.flatten(1), dim=0)) == 10
    again = next(found.batches(5, 1, start_step=1, rank=0, world_size=1))
    torch.testing.assert_close(again.rgb, images[5:])
    parts = [next(found.batches(4, 1, 0, rank, 2)).rgb for rank in range(2)]
    torch.testing.assert_close(torch.cat(parts), next(found.batches(4, 1, 0, 0, 1)).rgb)
    with pytest.raises(InputError, match="batch_size: got 11, expected at most 10"):
        next(found.batches(11, 1, 0, 0, 1))


def test_sensor_depth_has_holes():
    batch = next(source(sensor=True).images("test", "none", 6))
    assert batch.depth is not None
    assert batch.depth_mask is not None
    assert 0 < int((~batch.depth_mask).sum()) < batch.depth_mask.numel() // 4
    assert not batch.depth[~batch.depth_mask].any()


def test_depth_can_be_left_out():
    found = source()
    found.inputs = InputsConfig(depth="none")
    batch = next(found.images("test", "none", 6))
    assert batch.depth is None
    assert batch.depth_mask is None


def test_no_sync_in_a_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eligo.pixels.text.batch.values_are_free", lambda *_: False)
    found = source()
    stream = found.batches(4, seed=0, start_step=0, rank=0, world_size=1)
    next(stream)  # renders scenes
    with Watch():
        found.augmented(next(stream))
