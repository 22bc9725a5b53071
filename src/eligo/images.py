"""Image files, opened in one way everywhere: upright, and with an error that names the file."""

from collections.abc import Iterator
from pathlib import Path

from PIL import ExifTags, Image, ImageOps

from eligo.errors import InputError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_EXPECTED = "expected a whole image file, such as JPEG, PNG or WebP"


def image_files(folder: Path) -> Iterator[Path]:
    """Files below a folder that end as images do, in no order."""
    for path in folder.rglob("*"):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            yield path


def open_image(path: str | Path) -> Image.Image:
    """An image file in RGB, upright."""
    return upright_rgb(read_stored(path))


def upright_size(path: str | Path) -> tuple[int, int]:
    """Width and height of what `open_image` gives; the same error if it cannot.

    Decodes the whole file, since its end may be missing, but a JPEG at an eighth of its size.
    """
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
            image.draft("RGB", (width // 8, height // 8))
            image.load()
    except Exception:  # whatever it is, the usual way may know better, and says it in its words
        return open_image(path).size
    return (height, width) if turned else (width, height)


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
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder; {_EXPECTED}")
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: cannot be read as an image ({error}); {_EXPECTED}") from None
