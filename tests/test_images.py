"""Image files are opened upright and in RGB; unreadable files are named."""

import os
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from eligo.errors import InputError
from eligo.images import (
    MOST_PIXELS,
    as_image,
    decoding_bytes,
    image_files,
    open_image,
    printable_name,
    read_stored,
    shrinking,
    turned,
    upright_rgb,
    warn_shared_images,
)


def test_exif_orientation_is_applied(tmp_path):
    upright = Image.new("RGB", (20, 40), "blue")
    upright.paste("red", (0, 0, 20, 10))  # the top
    exif = Image.Exif()
    exif[0x0112] = 6  # stored rotated
    upright.rotate(90, expand=True).save(tmp_path / "photo.png", exif=exif)
    opened = open_image(tmp_path / "photo.png")
    assert (opened.size, opened.mode) == ((20, 40), "RGB")
    assert opened.tobytes() == upright.tobytes()
    assert read_stored(tmp_path / "photo.png").size == (40, 20)


def test_16_bit_grey_is_scaled_to_8_bits(tmp_path):
    Image.new("I;16", (3, 2), 0x4080).save(tmp_path / "grey.png")
    assert open_image(tmp_path / "grey.png").getpixel((2, 1)) == (0x40, 0x40, 0x40)


def test_read_stored_keeps_values(tmp_path):
    depth = Image.new("I;16", (3, 2), 1234)
    depth.save(tmp_path / "depth.png")
    assert read_stored(tmp_path / "depth.png").getpixel((2, 1)) == 1234


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "there is no such image"), (b"no image", "cannot be read"), (b"", "cannot be read")],
)
def test_unreadable_file_is_named(tmp_path, content, says):
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.png: {says}"):
        open_image(tmp_path / "a.png")


def test_error_says_which_formats_are_expected(tmp_path):
    (tmp_path / "note.txt").write_text("no image")
    (tmp_path / "folder.png").mkdir()
    expected = r"; expected a whole image file, such as JPEG, PNG or WebP$"
    with pytest.raises(InputError, match=r"note\.txt: cannot be read as an image .*" + expected):
        open_image(tmp_path / "note.txt")
    for read in (open_image, read_stored):
        with pytest.raises(InputError, match=r"\.png: is a folder" + expected) as error:
            read(tmp_path / "folder.png")
        assert "Errno" not in str(error.value)


def test_truncated_file_is_refused(tmp_path):
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:500])
    with pytest.raises(InputError, match=r"a\.jpg: cannot be read"):
        open_image(tmp_path / "a.jpg")


def test_broken_exif_is_ignored(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 6), "red").save(path, exif=b"Exif\x00\x00XX*\x00\x08\x00\x00\x00")
    with pytest.raises(SyntaxError, match="not a TIFF file"):
        ImageOps.exif_transpose(Image.open(path))
    opened = open_image(path)
    assert (opened.size, opened.getpixel((3, 3))) == ((8, 6), (255, 0, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_equals_upright_rgb(tmp_path, orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as image:
        upright = np.array(ImageOps.exif_transpose(image))
    opened = open_image(tmp_path / "a.png")
    assert (np.array(opened) == upright).all()
    assert (turned(stored, orientation) == upright).all()
    assert (np.array(upright_rgb(opened)) == upright).all()  # applied only once


@pytest.mark.parametrize(
    ("size", "side", "factor"),
    [
        ((640, 480), 168, 1),
        ((671, 900), 168, 1),
        ((672, 900), 168, 2),
        ((4000, 3000), 168, 8),
        ((4000, 3000), None, 1),
        ((10000, 10000), None, 3),
        ((10000, 10000), 5000, 3),
        ((1, 5000), 224, 1),
    ],
)
def test_only_large_images_are_reduced(size, side, factor):
    assert shrinking(size, side) == factor
    width, height = (-(-length // factor) for length in size)
    assert width * height <= MOST_PIXELS


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_reduced_image_looks_like_the_original(tmp_path, name: str, mode: str):
    picture = Image.linear_gradient("L").resize((1024, 768)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / name, **({} if name == "a.bmp" else {"exif": exif}))
    whole, small = open_image(tmp_path / name), open_image(tmp_path / name, side=48)
    assert min(small.size) == 96
    assert whole.size[0] / small.size[0] == whole.size[1] / small.size[1]
    difference = np.array(whole.resize(small.size, Image.Resampling.BOX)).astype(int)
    assert abs(difference - np.array(small)).max() <= 3


def test_every_mode_and_format_opens_as_rgb(tmp_path):
    grey = Image.linear_gradient("L")
    colour = Image.merge("RGB", (grey, grey.rotate(90), grey.rotate(180)))
    see_through = colour.quantize(8)
    see_through.info["transparency"] = bytes(range(0, 256, 32))
    kinds = {
        "cmyk.jpg": colour.convert("CMYK"),
        "palette.png": see_through,
        "alpha.webp": colour.convert("RGBA"),
        "one.bmp": Image.new("1", (9, 9)),
        "dot.png": Image.new("RGB", (1, 1)),
        "strip.png": Image.new("RGB", (1, 5000)),
        "float.tiff": grey.convert("F"),
        "-dash \n'quote\" \U0001f408.gif": grey,
    }
    for name, picture in kinds.items():
        picture.save(tmp_path / name)
    frames = [Image.new("P", (9, 9), colour) for colour in range(3)]
    frames[0].save(tmp_path / "moves.gif", save_all=True, append_images=frames[1:])
    found = sorted(image_files(tmp_path))
    assert len(found) == len(kinds) + 1
    for path in found:
        opened = open_image(path)
        with Image.open(path) as stored:
            assert (opened.mode, opened.size) == ("RGB", stored.size)


def test_image_above_the_pixel_limit_is_refused(tmp_path, monkeypatch):
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert open_image(tmp_path / "a.png").size == (40, 40)  # without a warning
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"a\.png: is too large .*; scale it down"):
        open_image(tmp_path / "a.png")


def test_unprintable_names_are_escaped(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.png")
    with pytest.raises(InputError) as error:
        open_image(path)
    assert str(error.value).endswith("/\\xff\\n.png: there is no such image")
    assert printable_name("写真 🐈.png") == "写真 🐈.png"


def test_images_shared_by_two_splits_are_logged(tmp_path, caplog):
    paths = [tmp_path / f"{name}.png" for name in "abcd"]
    for number, path in enumerate(paths):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(path)
    (tmp_path / "sub").mkdir()
    copy = tmp_path / "sub" / "copy.png"
    copy.write_bytes(paths[0].read_bytes())
    warn_shared_images(paths[:2], [paths[2], tmp_path / "missing.png"])
    assert not caplog.records
    warn_shared_images(paths[:2], [tmp_path / "sub" / ".." / "b.png", paths[3], copy])
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("2 of 3 validation images are also training images")
    assert f"{tmp_path}/b.png" in message.replace("sub/../", "")


def test_as_image_accepts_paths_pil_arrays_and_tensors(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    kinds = [
        tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(pixels),
        pixels, pixels / 255, tensor, tensor.float() / 255,
        (tensor.double() / 255).requires_grad_(),
    ]  # fmt: skip
    for kind in kinds:
        assert np.array_equal(np.asarray(as_image(kind)), pixels), type(kind)
    assert as_image(pixels[..., 0]).mode == as_image(tensor[:1]).mode == "RGB"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (7, "got int"),
        (np.zeros((3, 5, 7), np.uint8), "got the shape (3, 5, 7)"),
        (torch.zeros(5, 7, 3), "got the shape (5, 7, 3)"),
        (np.zeros((0, 7, 3), np.uint8), "got the shape"),
        (np.full((5, 7, 3), 200.0), "outside 0 to 1"),
        (np.full((5, 7, 3), np.nan), "outside 0 to 1"),
        (np.zeros((5, 7, 3), np.int64), "got int64"),
    ],
)
def test_as_image_refuses_other_types_shapes_and_values(source, message):
    with pytest.raises(InputError, match=re.escape(message)):
        as_image(source)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_large_image_is_reduced_before_it_is_converted(mode):
    """The result is that of converting first: no channel is mixed with another."""
    random = np.random.default_rng(0)
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = random.integers(0, 256, (130, 170, *channels), dtype=np.uint8)
    image = Image.fromarray(pixels, mode)
    expected = image.convert("RGB").reduce(4)
    found = upright_rgb(image, 16)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_memory_of_decoding_is_estimated_from_the_header(tmp_path):
    image = Image.new("RGB", (400, 300))
    sizes = {}
    for name, options in (("a.jpg", {}), ("b.jpg", {"progressive": True}), ("c.png", {}),
                          ("d.webp", {})):  # fmt: skip
        image.save(tmp_path / name, **options)
        sizes[name] = decoding_bytes(tmp_path / name, 16)
    assert sizes["a.jpg"] < sizes["b.jpg"] < sizes["c.png"] == 4 * 400 * 300 < sizes["d.webp"]
