"""Mirroring, scaling and cropping keep image, depth and labels aligned."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from eligo.config import load_config
from eligo.errors import ConfigError
from eligo.pixels.config import AugmentConfig
from eligo.pixels.data.augment import Prepared, augment, augment_batch, inside, mirror_some, scaled
from eligo.pixels.data.batch import Batch


def image(height: int = 40, width: int = 50) -> Prepared:
    """Image, depth and labels store the column index, so that misalignment is visible."""
    columns = torch.arange(width).expand(height, width)
    return Prepared(
        rgb=columns.to(torch.uint8).expand(3, -1, -1).clone() + 1,
        depth=columns.float()[None] + 1,
        labels=columns.to(torch.uint8),
        word_ids=torch.tensor([3, -1]),
    )


def test_mirroring_alone():
    found = {tuple(augment(image(), AugmentConfig()).labels[0, :2].tolist()) for _ in range(20)}
    assert found == {(0, 1), (49, 48)}


def test_crops_stay_aligned_and_padding_is_ignored():
    config = AugmentConfig(scales=(1.0,), crop=(36, 64))
    mirrored = set()
    for _ in range(20):
        cut = augment(image(), config)
        assert cut.rgb.shape == (3, 36, 64)
        known = cut.labels != 255
        assert torch.equal(known, cut.depth[0].isfinite())
        assert torch.equal(known, inside(torch.tensor([cut.frame]), 36, 64)[0, 0])
        assert int(known.sum()) == 36 * 50
        assert torch.equal(cut.rgb[0][known], cut.labels[known] + 1)
        assert torch.equal(cut.depth[0][known], cut.labels[known].float() + 1)
        assert not cut.rgb[:, ~known].any()
        mirrored.add(cut.labels[0, 20].item())
    assert len(mirrored) == 2  # mirrored or not


def test_crops_cover_the_whole_image():
    config = AugmentConfig(mirror=False, scales=(1.0,), crop=(32, 32))
    starts = {int(augment(image(), config).labels[0, 0]) for _ in range(200)}
    assert starts == set(range(19))


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_scaling_keeps_image_depth_and_labels_aligned(scale: float):
    found = scaled(image(), scale)
    assert found.labels.shape == (round(40 * scale), round(50 * scale))
    assert set(found.labels.unique().tolist()) <= set(range(50))
    middle = slice(2, -2)
    gap = found.rgb[0].float() - 1 - found.labels.float()
    assert (
        gap[:, middle].abs().max() <= 1
    )  # interpolated values differ from nearest ones by at most 1
    assert torch.equal(found.depth[0], found.labels.float() + 1)
    assert found.depth.isfinite().all()


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.25, 1.75])
def test_scaled_colours_are_whole_numbers(scale: float):
    """Rows and columns are rounded one after the other, as in Pillow."""
    colours = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    exact = F.interpolate(colours[None].float(), [round(40 * scale), round(50 * scale)],
                          mode="bilinear", align_corners=False)[0]  # fmt: skip
    for stored in (colours, colours.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        found = scaled(replace(image(), rgb=stored), scale).rgb
        assert found.dtype == torch.uint8
        assert (found.float() - exact).abs().max() <= 1.01


@pytest.mark.parametrize("scale", [0.5, 1.5, 0.75])
def test_nearest_resize_uses_pixel_centres(scale: float):
    """Using corners would shift depth and labels against the interpolated image."""
    found = scaled(image(), scale)
    width = found.labels.shape[1]
    middles = (torch.arange(width) + 0.5) * 50 / width
    assert torch.equal(found.labels[0].long(), middles.floor().long())


def test_batches_are_mirrored_per_image():
    one = image()
    parts = (one.rgb.float(), one.labels, one.depth, one.depth > 0)
    batch = Batch(*(part.expand(64, *part.shape) for part in parts))
    found = mirror_some(batch)
    flipped = found.labels[:, 0, 0] == 49
    assert 10 < int(flipped.sum()) < 54
    assert torch.equal(found.rgb[:, 0], found.labels.float() + 1)
    assert found.depth is not None
    assert torch.equal(found.depth[:, 0], found.labels.float() + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": [0.5]}, "give crop"),
        ({"scales": [-1.0], "crop": [64, 64]}, "above 0"),
        ({"crop": [16, 64]}, "32 x 32"),
    ],
)
def test_invalid_settings_are_refused(changes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        load_config(AugmentConfig, changes)


def columns_batch(count: int = 16, height: int = 40, width: int = 50) -> Batch:
    """Colours, depth and labels hold the column; depth is unknown at the left edge."""
    columns = torch.arange(width).expand(count, height, width)
    z = columns[:, None].float()
    return Batch(z.expand(-1, 3, -1, -1), columns.to(torch.uint8), z, z > 4)


@pytest.mark.parametrize("crop", [(36, 64), (32, 32), None])
def test_a_batch_on_the_device_is_cropped_like_single_images(crop: tuple[int, int] | None):
    config = AugmentConfig(crop=crop)
    found = augment_batch(columns_batch(), config)
    height, width = crop or (40, 50)
    assert found.labels.shape == (16, height, width)
    assert found.depth is not None
    assert found.depth_mask is not None
    known = found.labels != 255
    assert known.sum((1, 2)).unique().tolist() == [min(height, 40) * min(width, 50)]
    labels = found.labels[known].float()
    torch.testing.assert_close(found.rgb[:, 0][known], labels)
    torch.testing.assert_close(found.depth[:, 0][known], labels)
    assert torch.equal(found.depth_mask[:, 0][known], labels > 4)
    assert not found.rgb[:, 0][~known].any()
    assert not found.depth_mask[:, 0][~known].any()
    assert len(found.labels[:, 0, width // 2].unique()) > 1


def test_a_batch_on_the_device_is_scaled_image_by_image():
    torch.manual_seed(0)
    config = AugmentConfig(mirror=False, scales=(0.5, 2.0), crop=(40, 50))
    found = augment_batch(columns_batch(), config)
    shares = (found.labels != 255).float().mean((1, 2))
    assert sorted(shares.unique().tolist()) == pytest.approx([0.25, 1.0])
    known = found.labels != 255
    difference = found.rgb[:, 0][known] - found.labels[known].float()
    assert difference.abs().max() <= 0.5 + 1e-4
