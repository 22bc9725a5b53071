"""Pictures of kept and dropped tokens."""

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.report.tokens_picture import kept_picture, stages_picture


def test_kept_tokens_keep_their_colour_and_dropped_ones_fade():
    image = Image.new("RGB", (60, 30), (200, 20, 20))
    kept = torch.tensor([[True, False, False], [False, False, True]])
    shown = np.asarray(kept_picture(image, kept))
    assert shown.shape[0] % 2 == 0
    assert shown.shape[1] % 3 == 0
    assert shown.shape[1] >= 336
    height, width = shown.shape[0] // 2, shown.shape[1] // 3
    assert tuple(shown[height // 2, width // 2]) == (200, 20, 20)
    assert tuple(shown[height + height // 2, 2 * width + width // 2]) == (200, 20, 20)
    faded = shown[height // 2, width + width // 2]
    assert faded[0] == faded[1] == faded[2] > 150
    assert tuple(shown[height // 2, width - 1]) == (20, 20, 28), "a line where kept meets dropped"


def test_one_panel_per_stage_and_one_row_per_tile():
    images = [Image.new("RGB", (28, 28), "blue")] * 2
    masks = [torch.eye(4, dtype=torch.bool)] * 2
    one = stages_picture(images[:1], [("merged", masks[:1])], title="what?", caption="that")
    more = stages_picture(images, [("merged", masks), ("layer 2", masks)])
    assert more.width > one.width
    assert more.height > one.height
    whole = stages_picture(images[:1], [])
    assert whole.width < one.width


def test_invalid_input_is_refused():
    image, mask = Image.new("RGB", (28, 28)), torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(InputError, match="another number of masks for"):
        stages_picture([image], [("merged", [mask, mask])])
    with pytest.raises(InputError, match="got 0 images"):
        stages_picture([], [])
