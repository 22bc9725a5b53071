"""Image files are opened upright and in RGB; what cannot be opened is named."""

import pytest
from PIL import Image, ImageOps

from eligo.errors import InputError
from eligo.images import open_image, read_stored


def test_a_photo_held_sideways_is_turned(tmp_path):
    upright = Image.new("RGB", (20, 40), "blue")
    upright.paste("red", (0, 0, 20, 10))  # the sky
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its left side
    upright.rotate(90, expand=True).save(tmp_path / "photo.png", exif=exif)
    opened = open_image(tmp_path / "photo.png")
    assert (opened.size, opened.mode) == ((20, 40), "RGB")
    assert opened.tobytes() == upright.tobytes()
    assert read_stored(tmp_path / "photo.png").size == (40, 20)


def test_16_bits_of_grey_become_8(tmp_path):
    Image.new("I;16", (3, 2), 0x4080).save(tmp_path / "grey.png")
    assert open_image(tmp_path / "grey.png").getpixel((2, 1)) == (0x40, 0x40, 0x40)


def test_stored_numbers_stay(tmp_path):
    depth = Image.new("I;16", (3, 2), 1234)
    depth.save(tmp_path / "depth.png")
    assert read_stored(tmp_path / "depth.png").getpixel((2, 1)) == 1234


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "there is no such image"), (b"no image", "cannot be read"), (b"", "cannot be read")],
)
def test_what_cannot_be_opened_is_named(tmp_path, content, says):
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.png: {says}"):
        open_image(tmp_path / "a.png")


def test_what_is_no_image_hears_what_is_one(tmp_path):
    (tmp_path / "note.txt").write_text("no image")
    (tmp_path / "folder.png").mkdir()
    expected = r"; expected a whole image file, such as JPEG, PNG or WebP$"
    with pytest.raises(InputError, match=r"note\.txt: cannot be read as an image .*" + expected):
        open_image(tmp_path / "note.txt")
    for read in (open_image, read_stored):
        with pytest.raises(InputError, match=r"\.png: is a folder" + expected) as error:
            read(tmp_path / "folder.png")
        assert "Errno" not in str(error.value)


def test_half_a_file(tmp_path):
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:500])
    with pytest.raises(InputError, match=r"a\.jpg: cannot be read"):
        open_image(tmp_path / "a.jpg")


def test_broken_exif_does_not_spoil_a_picture(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 6), "red").save(path, exif=b"Exif\x00\x00XX*\x00\x08\x00\x00\x00")
    with pytest.raises(SyntaxError, match="not a TIFF file"):
        ImageOps.exif_transpose(Image.open(path))
    opened = open_image(path)
    assert (opened.size, opened.getpixel((3, 3))) == ((8, 6), (255, 0, 0))
