"""Pictures of a prediction: class colours with a legend, attention of words."""

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.pixels.data.classes import NYU_40
from eligo.report.pixels_picture import (
    class_palette,
    indexed_labels,
    overlay_picture,
    word_picture,
)

IMAGE = Image.new("RGB", (64, 48), (128, 128, 128))


def test_labels_keep_their_values_and_colours():
    labels = torch.arange(48 * 64).view(48, 64) % 14
    names = ("wall", "floor", *map(str, range(12)))
    picture = indexed_labels(labels, names)
    assert np.array_equal(np.asarray(picture), labels.numpy())
    assert picture.convert("RGB").getpixel((5, 0)) == class_palette(names)[5]
    assert len(set(class_palette(NYU_40))) == 40


def test_only_walls_and_floors_are_grey():
    def colour(rgb: tuple[int, int, int]) -> int:
        return max(rgb) - min(rgb)

    assert max(map(colour, class_palette(("wall", "floor", "ball"))[:2])) < 20
    assert min(map(colour, class_palette(("cat", "dog", "ball")))) > 60
    assert len(set(class_palette(NYU_40[2:]))) == 38


def test_overlay_shows_image_and_labels():
    labels = torch.zeros(48, 64, dtype=torch.uint8)
    labels[:, 32:] = 3
    classes = ("wall", "floor", "ball", "ring")
    picture = overlay_picture(IMAGE, labels, classes)
    assert picture.width == 640
    assert picture.height > 480  # the legend
    palette = class_palette(classes)
    for x, number in ((100, 0), (500, 3)):
        expected = [round(0.45 * part + 0.55 * 128) for part in palette[number]]
        assert np.allclose(picture.getpixel((x, 200)), expected, atol=1)
    assert picture.getpixel((319, 200)) == (24, 24, 32)  # a line between them
    colours = {colour for _, colour in picture.crop((0, 480, 640, picture.height)).getcolors(9999)}
    assert {palette[0], palette[3]} <= colours
    assert palette[2] not in colours  # a class that does not occur


def test_word_pictures_are_bright_where_attended():
    attention = torch.zeros(6, 8)
    attention[2, 6] = 0.5
    picture = word_picture(IMAGE, attention, "ring", highest=0.5)
    brightness = np.asarray(picture.convert("L"), dtype=float)[-514:-34]  # above the scale
    assert brightness[200, 520] > brightness[200, 100] + 50
    dimmer = word_picture(IMAGE, attention, "ring", highest=1.0)
    assert np.asarray(dimmer.convert("L"), dtype=float)[-514:-34][200, 520] < brightness[200, 520]
    scale = np.asarray(picture.convert("L"), dtype=int)[-20, 30:180]
    assert (np.diff(scale) >= -1).all()  # from dark to bright
    assert scale[-1] - scale[0] > 150
    sentence = word_picture(IMAGE, attention, "a ring " * 40, highest=0.5)
    assert sentence.height > picture.height
    assert sentence.width == picture.width
    with pytest.raises(InputError, match="highest"):
        word_picture(IMAGE, attention, "ring", highest=0.0)
