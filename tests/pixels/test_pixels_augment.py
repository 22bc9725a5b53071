"""Mirroring, scaling and cropping keep image, depth and labels aligned."""

import pytest
import torch

from eligo.config import load_config
from eligo.errors import ConfigError
from eligo.pixels.config import AugmentConfig
from eligo.pixels.data.augment import Prepared, augment, mirror_some, scaled
from eligo.pixels.data.batch import Batch


def image(height: int = 40, width: int = 50) -> Prepared:
    """Image, depth and labels store the column index, so that misalignment is visible."""
    columns = torch.arange(width).expand(height, width)
    return Prepared(
        rgb=columns.float().expand(3, -1, -1).clone() + 1,
        depth=columns.float()[None] + 1,
        depth_mask=torch.ones(1, height, width, dtype=torch.bool),
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
        inside = cut.labels != 255
        assert torch.equal(inside, cut.depth_mask[0])
        assert int(inside.sum()) == 36 * 50
        assert torch.equal(cut.rgb[0][inside], cut.labels[inside].float() + 1)
        assert torch.equal(cut.depth[0][inside], cut.labels[inside].float() + 1)
        assert not cut.rgb[:, ~inside].any()
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
    inside = slice(2, -2)
    gap = found.rgb[0] - 1 - found.labels.float()
    assert (
        gap[:, inside].abs().max() <= 1
    )  # interpolated values differ from nearest ones by at most 1
    assert torch.equal(found.depth[0], found.labels.float() + 1)
    assert found.depth_mask.all()


@pytest.mark.parametrize("scale", [0.5, 1.5, 0.75])
def test_nearest_resize_uses_pixel_centres(scale: float):
    """Using corners would shift depth and labels against the interpolated image."""
    found = scaled(image(), scale)
    width = found.labels.shape[1]
    middles = (torch.arange(width) + 0.5) * 50 / width
    assert torch.equal(found.labels[0].long(), middles.floor().long())


def test_batches_are_mirrored_per_image():
    one = image()
    parts = (one.rgb, one.labels, one.depth, one.depth_mask)
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
