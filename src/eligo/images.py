"""Image files, opened in one way everywhere: upright, and with an error that names the file."""

from pathlib import Path

from PIL import Image, ImageOps

from eligo.errors import InputError


def open_image(path: str | Path) -> Image.Image:
    """An image file in RGB, upright."""
    with read_stored(path) as stored:
        return upright_rgb(stored)


def upright_rgb(image: Image.Image) -> Image.Image:
    """An image in RGB, turned as its EXIF says: cameras store what they saw sideways."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF raises many things, and the picture itself is whole
        upright = image
    if upright.mode.startswith("I"):  # 16-bit grey, which `convert` would cut off at 255
        upright = upright.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return upright.convert("RGB")


def read_stored(path: str | Path) -> Image.Image:
    """An image as it is stored: depth and labels, whose numbers mean something."""
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: cannot be read as an image ({error})") from None
