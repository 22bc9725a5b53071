"""Evaluation: multi-scale and sliding windows against a slow oracle, rows by provenance."""

import pytest
import torch
from pixel_cases import some_text, tiny_model
from torch.nn import functional as F

from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import PixelsTrainConfig, segmentation_metrics
from eligo.pixels.data.batch import Batch
from eligo.pixels.inference.evaluate import evaluate_rows, split_confusion
from eligo.pixels.inference.multi_scale import (
    ModelInputs,
    MultiScale,
    _starts,
    probabilities,
    scaled,
)
from eligo.pixels.training.task import PixelsTask


def a_batch(height: int = 64, width: int = 96) -> Batch:
    return Batch(
        torch.randn(2, 3, height, width),
        torch.randint(5, (2, height, width), dtype=torch.uint8),
        torch.randn(2, 1, height, width),
        torch.rand(2, 1, height, width) < 0.8,
        some_text(3, 0),
    )


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@torch.no_grad()
def test_single_pass_equals_the_softmax(model):
    batch = a_batch(70, 90)
    plain = model(batch.rgb, batch.depth, batch.depth_mask, batch.text).logits.softmax(1)
    torch.testing.assert_close(probabilities(model, batch, MultiScale()), plain)


@torch.no_grad()
def test_multi_scale_and_flip_match_the_oracle(model):
    batch = a_batch()
    scales, size = (0.5, 1.25), (64, 96)
    parts = []
    for high, wide in ((32, 64), (96, 128)):  # 32 x 48 and 80 x 120, up to multiples of 32
        rgb = F.interpolate(batch.rgb, (high, wide), mode="bilinear", align_corners=False)
        rows = ((torch.arange(high) + 0.5) * 64 / high).long()
        columns = ((torch.arange(wide) + 0.5) * 96 / wide).long()
        assert batch.depth is not None
        assert batch.depth_mask is not None
        depth = batch.depth[:, :, rows][..., columns]
        mask = batch.depth_mask[:, :, rows][..., columns]
        for flip in (False, True):
            inputs = [x.flip(-1) if flip else x for x in (rgb, depth, mask)]
            found = model(*inputs, batch.text).logits.softmax(1)
            found = found.flip(-1) if flip else found
            parts.append(F.interpolate(found, size, mode="bilinear", align_corners=False))
    found = probabilities(model, batch, MultiScale(scales, flip=True))
    torch.testing.assert_close(found, torch.stack(parts).mean(0), atol=1e-5, rtol=1e-5)


def test_scaled_size_is_rounded_up_once():
    inputs = ModelInputs(torch.randn(2, 3, 96, 128), None, None, None)
    assert scaled(inputs, 1.0) is inputs
    assert scaled(inputs, 0.75).rgb.shape[-2:] == (96, 96)  # 72 and exactly 96


@torch.no_grad()
def test_sliding_windows_match_the_oracle(model):
    batch = a_batch(64, 100)
    window = (40, 48)  # steps of 27 and 32
    total, count = torch.zeros(2, 5, 64, 100), torch.zeros(64, 100)
    assert batch.depth is not None
    assert batch.depth_mask is not None
    for top in (0, 24):
        for left in (0, 32, 52):
            place = (..., slice(top, top + 40), slice(left, left + 48))
            part = (batch.rgb[place], batch.depth[place], batch.depth_mask[place])
            total[place] += model(*part, batch.text).logits.softmax(1)
            count[place] += 1
    found = probabilities(model, batch, MultiScale(window=window))
    torch.testing.assert_close(found, total / count, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.sum(1), torch.ones(2, 64, 100))
    whole = probabilities(model, batch, MultiScale(window=(480, 640)))  # smaller than the window
    torch.testing.assert_close(whole, probabilities(model, batch, MultiScale()))


@pytest.mark.parametrize(("size", "window"), [(480, 480), (481, 480), (1000, 480), (96, 40)])
def test_windows_cover_every_pixel(size: int, window: int):
    starts = list(_starts(size, window))
    covered = torch.zeros(size, dtype=torch.bool)
    for start in starts:
        assert 0 <= start <= size - window
        covered[start : start + window] = True
    assert covered.all()
    assert len(starts) == len(set(starts))


@pytest.mark.parametrize("views", [{"scales": ()}, {"scales": (0.0,)}, {"window": (16, 64)}])
def test_invalid_scales_and_windows_are_refused(views: dict):
    with pytest.raises(InputError, match="got"):
        MultiScale(**views)


def test_evaluation_rows():
    task = PixelsTask(load_config(PixelsTrainConfig, "pixels/scenes").smoke())
    model = task.model.eval()
    rows = evaluate_rows(model, task.source, "test", batch_size=3)
    assert [row.words for row in rows] == ["predicted", "none", "oracle", "shuffled"]
    assert all(row.images == 4 for row in rows)
    shown = rows[0].summary()
    assert {"words", "images", "miou", "miou_reference", "pixel_acc", "macc", "f1"} <= set(shown)
    one, images = split_confusion(model, task.source, "test", "oracle", batch_size=3)
    other, _ = split_confusion(model, task.source, "test", "oracle", batch_size=1)
    assert torch.equal(one, other)  # for any batch size
    assert int(one.sum()) == 4 * 48 * 64
    assert images == 4
    assert segmentation_metrics(one).miou == rows[2].metrics.miou
