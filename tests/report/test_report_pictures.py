"""Pictures of RGB, depth, labels and masks show the values of their tensors."""

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.report import pictures


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def test_rgb_is_unchanged():
    rgb = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    assert (pixels(pictures.rgb_picture(rgb)) == rgb.permute(1, 2, 0).numpy()).all()


def test_depth_is_bright_near_and_dark_far():
    depth = torch.linspace(1, 6, 64).expand(3, 64)
    luminance = pixels(pictures.depth_picture(depth))[1] @ [0.299, 0.587, 0.114]
    assert (np.diff(luminance) < 0).all()


def test_depth_range_can_be_fixed():
    depth = torch.tensor([[1.0, 2.0, 3.0]])
    ends = pixels(pictures.depth_picture(depth))[0]
    fixed = pixels(pictures.depth_picture(depth, near=1.5, far=2.5))[0]
    assert (ends[[0, 2]] == fixed[[0, 2]]).all()  # values beyond the range are clamped
    clipped = pixels(pictures.depth_picture(depth, near=0.0, far=6.0))[0]
    assert (clipped[0] != ends[0]).any()


def test_missing_depth_is_black():
    depth = torch.tensor([[1.0, float("nan"), 0.0], [2.0, 3.0, 4.0]])
    shown = pixels(pictures.depth_picture(depth, depth > 0))
    assert (shown[0, 1:] == 0).all()
    assert shown[0, 0].any()
    assert not pixels(pictures.depth_picture(depth, torch.zeros_like(depth) > 0)).any()
    assert pixels(pictures.depth_picture(torch.full((2, 2), 3.0))).any()  # a flat wall


@pytest.mark.parametrize("count", [0, 1, 2, 14, 40])
def test_palette_colours_differ(count: int):
    grey = ((128, 128, 128), (90, 90, 90))
    palette = pictures.label_palette(count, grey)
    assert len(palette) == count
    assert palette[:2] == grey[:count]
    array = np.array(palette).reshape(-1, 3)
    assert ((array >= 0) & (array <= 255)).all()
    apart = np.abs(array[:, None] - array[None]).sum(-1) + 1000 * np.eye(count, dtype=int)
    assert count < 2 or apart.min() >= 12
    assert palette == pictures.label_palette(count, grey)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_labels_take_their_colours(dtype):
    palette = pictures.label_palette(3)
    labels = torch.tensor([[0, 1], [2, 255]], dtype=dtype)
    shown = pixels(pictures.label_picture(labels, palette)).reshape(4, 3)
    assert [tuple(row) for row in shown.tolist()] == [*palette, (0, 0, 0)]
    with pytest.raises(InputError, match="palette of 2"):
        pictures.label_picture(labels, palette[:2])


def test_highlight_keeps_the_masked_pixels():
    rgb = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
    mask = torch.zeros(16, 16, dtype=torch.bool)
    mask[4:8, 5:9] = True
    image = pictures.rgb_picture(rgb)
    shown = pixels(pictures.highlight(image, mask))
    assert (shown[mask.numpy()] == pixels(image)[mask.numpy()]).all()
    far = shown[12:, 12:]
    assert (far == far[..., :1]).all()  # grey
    nothing = pixels(pictures.highlight(image, torch.zeros_like(mask)))
    assert (nothing == nothing[..., :1]).all()


def test_contact_sheet_contains_every_picture():
    colours = [(200, 10, 10), (10, 200, 10), (10, 10, 200), (200, 200, 10)]
    images = [Image.new("RGB", (20, 10), colour) for colour in colours]
    rows = [images[:2], images[2:]]
    plain = pictures.contact_sheet(rows, cell=40)
    captioned = pictures.contact_sheet(
        rows, cell=40, title="all", columns=("one", "two"), captions=("a " * 60, "b\nc")
    )
    for sheet in (plain, captioned):
        counts = {colour: count for count, colour in sheet.getcolors(1 << 20)}
        assert all(counts[colour] == 40 * 20 for colour in colours)
    assert captioned.width == plain.width
    assert captioned.height > plain.height + 100  # the long caption is wrapped


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "rows of equal length"),
        ([[1], [1, 1]], {}, "rows of equal length"),
        ([[1]], {"columns": ("a", "b")}, "2 column heads for 1 columns"),
        ([[1]], {"captions": ("a", "b")}, "2 captions for 1 rows"),
    ],
)
def test_uneven_sheets_are_refused(rows, options, message):
    images = [[Image.new("RGB", (4, 4)) for _ in row] for row in rows]
    with pytest.raises(InputError, match=message):
        pictures.contact_sheet(images, **options)
