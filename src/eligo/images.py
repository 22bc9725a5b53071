"""Images, opened in one way everywhere: upright, in RGB, in bounded memory; errors name the file.

An image much larger than a model's input is made smaller while it is opened: a JPEG is decoded at a
fraction of its size, others are averaged over blocks of pixels. An image near the input size is not
changed. Pillow's own limit (about 178 megapixels) holds for all files.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from PIL import Image

from eligo.errors import InputError
from eligo.io.locks import warnings_lock

if TYPE_CHECKING:
    import torch

ImageLike: TypeAlias = Union[str, Path, Image.Image, np.ndarray, "torch.Tensor"]
"""An image file, or an image in memory."""

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
HEIF = (".heic", ".heif")
_OTHERS = (
    ".arw", ".avif", ".cr2", ".cr3", ".dng", ".jp2", ".jxl", ".nef", ".orf", ".psd", ".raf", ".rw2",
)  # fmt: skip
MOST_PIXELS = 2**24
"""Largest area of an opened image; larger images are made smaller."""
_EXPECTED = "expected a whole image file, such as JPEG, PNG or WebP"
_ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
"""Orientations that swap height and width."""
# Processors that scale every image to one size; others may cut a large image into tiles.
_ONE_SIZE = ("CLIPProcessor", "LlavaProcessor", "PaliGemmaProcessor", "SiglipProcessor")
_SEPARATE = ("L", "RGB")  # modes that may be made smaller before they are converted
_PLAIN = ("BMP", "GIF", "PNG", "TIFF")  # formats that are decoded into the image itself
_END = 4096  # bytes compared at either end of a file
_log = logging.getLogger("eligo")


def image_files(folder: Path, suffixes: Iterable[str] = SUFFIXES) -> Iterator[Path]:
    """Yield the image files below a folder, by their suffix, in no order."""
    for path in folder.rglob("*"):
        if path.suffix.lower() in suffixes and os.path.isfile(path):  # noqa: PTH113 (never raises)
            yield path


def unsupported_files(folder: Path, supported: Iterable[str] = SUFFIXES) -> Iterator[Path]:
    """Yield the photos below a folder in formats that are not supported, such as raw files."""
    return image_files(folder, {*_OTHERS, *HEIF} - set(supported))


def more_suffixes() -> tuple[str, ...]:
    """Return suffixes that Pillow and its plug-ins read here and not everywhere."""
    heif = _register_heif()
    known = Image.registered_extensions()
    return (*heif, *(suffix for suffix in _OTHERS if suffix in known))


def _register_heif() -> tuple[str, ...]:
    """Let Pillow read HEIC, if pillow-heif is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return ()
    register_heif_opener()
    return HEIF


def open_image(path: str | Path, side: int | None = None) -> Image.Image:
    """Open an image file as an upright RGB image of at most `MOST_PIXELS`.

    `side`: the input size of the model, in pixels. An image whose shorter side is at least four
    times that is made smaller by a whole factor, to at least twice that.
    """
    with _opened(path) as stored:
        if (factor := shrinking(stored.size, side)) > 1:  # a JPEG decodes to a fraction at once
            stored.draft(stored.mode, (stored.width // factor, stored.height // factor))
        return upright_rgb(stored, side)


def decoding_bytes(path: str | Path, side: int | None = None) -> int:
    """Estimate the memory that `open_image` takes for a file, from its header."""
    with _opened(path) as stored:
        pixels = stored.width * stored.height
        if stored.format in ("JPEG", "MPO"):
            if stored.info.get("progressive"):  # all coefficients are held at once
                return 3 * pixels
            return 4 * pixels // min(8, shrinking(stored.size, side)) ** 2
        if stored.format in _PLAIN:
            return pixels * (4 if stored.mode in _SEPARATE else 8)
        return 16 * pixels  # WebP, HEIC, AVIF: their decoders hold several copies


def as_image(source: ImageLike, side: int | None = None) -> Image.Image:
    """Return any image as an upright PIL image in RGB, made smaller as `open_image` does.

    A file, a PIL image, a NumPy array (height, width, channels) or a tensor (channels, height,
    width). Arrays and tensors hold uint8 values, or floats from 0 to 1; they have 1, 3 or 4
    channels, or none (grey).

    >>> as_image(np.zeros((2, 3, 3), np.uint8)).size
    (3, 2)
    """
    if isinstance(source, str | Path):
        return open_image(source, side)
    if isinstance(source, Image.Image):
        return upright_rgb(source, side)
    return upright_rgb(Image.fromarray(_as_bytes(source)), side)


def _as_bytes(source: Any) -> np.ndarray:
    """Return an array or a tensor as uint8 of shape (height, width[, channels])."""
    values = source
    if hasattr(source, "detach"):  # a tensor; torch is not imported for this
        values = source.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
        values = np.moveaxis(values, 0, -1) if values.ndim == 3 else values
    if not isinstance(values, np.ndarray):
        raise InputError(
            f"image: got {type(source).__name__}, expected a path, a PIL image, a NumPy array or a "
            "tensor"
        )
    shape_fits = values.ndim == 2 or (values.ndim == 3 and values.shape[-1] in (1, 3, 4))
    if not shape_fits or not values.size:
        raise InputError(
            f"image: got the shape {tuple(source.shape)}, expected (height, width, channels) of an "
            "array or (channels, height, width) of a tensor, with 1, 3 or 4 channels"
        )
    if np.issubdtype(values.dtype, np.floating):
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise InputError("image: got floats outside 0 to 1; divide by 255, or pass uint8")
        values = np.rint(values * 255).astype(np.uint8)
    if values.dtype != np.uint8:
        raise InputError(f"image: got {values.dtype}, expected uint8, or floats from 0 to 1")
    return values[..., 0] if values.ndim == 3 and values.shape[-1] == 1 else values


def upright_size(path: str | Path) -> tuple[int, int]:
    """Return width and height of the upright image; raises if the file cannot be decoded.

    A JPEG is decoded at an eighth of its size.
    """
    with _opened(path) as stored:
        width, height = stored.size
        sideways = orientation_of(stored) in SIDEWAYS
        stored.draft(stored.mode, (width // 8, height // 8))
        stored.load()
    return (height, width) if sideways else (width, height)


def upright_rgb(image: Image.Image, side: int | None = None) -> Image.Image:
    """Return an image in RGB, turned upright by its EXIF, and made smaller as by `open_image`."""
    orientation, rgb = orientation_of(image), image
    if rgb.mode in _SEPARATE and (factor := shrinking(rgb.size, side)) > 1:
        rgb = rgb.reduce(factor)  # before it is converted: a copy of a large image takes memory
    if rgb.mode.startswith("I"):  # 16-bit grey, which `convert` would cut off at 255
        rgb = rgb.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if isinstance(rgb.info.get("transparency"), bytes):  # Pillow recommends this order
        rgb = rgb.convert("RGBA")
    if rgb.mode != "RGB":
        rgb = rgb.convert("RGB")
    if (factor := shrinking(rgb.size, side)) > 1:
        rgb = rgb.reduce(factor)
    if (turn := _TURNS.get(orientation)) is not None:
        rgb = rgb.transpose(turn)
    rgb = rgb.copy() if rgb is image else rgb
    rgb.info = {}  # without EXIF, so that it is not turned again
    return rgb


def shrinking(size: tuple[int, int], side: int | None = None) -> int:
    """Return the whole number by which the sides of an image are divided; 1: unchanged."""
    width, height = size
    wanted = 1 if side is None else min(size) // (2 * side)
    allowed = math.ceil(math.sqrt(width * height / MOST_PIXELS))
    return max(1, wanted, allowed)


def side_of(processor: Any) -> int | None:
    """Return the size that a processor scales every image to; None if it depends on the image."""
    if type(processor).__name__ not in _ONE_SIZE:
        return None
    images = processor.image_processor
    parts = [dict(getattr(images, name, None) or {}) for name in ("size", "crop_size")]
    names = ("height", "width", "shortest_edge")
    return max((part[name] for part in parts for name in names if part.get(name)), default=None)


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if there is none."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # broken EXIF raises many errors; the image itself may be fine
        return 1
    return orientation if orientation in _TURNS else 1


def turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored values of any type upright, as `upright_rgb` turns images."""
    if orientation in SIDEWAYS:
        values = values.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        values = values[:, ::-1]
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return np.ascontiguousarray(values)


def read_stored(path: str | Path) -> Image.Image:
    """Read an image as it is stored: depth maps and labels, whose values have a meaning."""
    with _opened(path) as image:
        image.load()
        return image


def warn_shared_images(
    first: Iterable[Path],
    second: Iterable[Path],
    names: tuple[str, str] = ("training", "validation"),
) -> None:
    """Warn if two splits share images: the same path, or files of equal size and equal ends."""
    known, paths = ({os.path.realpath(path): path for path in split} for split in (first, second))
    sizes = {real: _size(real) for real in {*known, *paths}}
    new = {sizes[real] for real in paths if real not in known} - {0}
    ends = {_ends(real, sizes[real]): real for real in known if sizes[real] in new}
    pairs = []
    for real, path in paths.items():
        if real not in known and ends:
            real = ends.get(_ends(real, sizes[real]), real)
        if real in known:
            pairs.append((known[real], path))
    if pairs:
        name, other = map(printable_name, pairs[0])
        _log.warning(
            "%d of %d %s images are also %s images, so results on them are not reliable: %s; "
            "remove them from one of the two splits",
            len(pairs), len(paths), names[1], names[0],
            name if name == other else f"{other} is {name}",
        )  # fmt: skip


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _ends(path: str, size: int) -> tuple[int, bytes]:
    """Return a cheap fingerprint of a file: its size, and a hash of its first and last bytes."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(_END)
            file.seek(max(0, size - _END))
            return size, blake2b(head + file.read(_END)).digest()
    except OSError:
        return size, path.encode("utf-8", "surrogateescape")  # equal to no other


def printable_name(path: str | Path) -> str:
    r"""Return a printable file name, with bytes that are not UTF-8 as `\xff`.

    >>> printable_name("caf\udce9\n.png")
    'caf\\xe9\\n.png'
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image file; every problem with it is an `InputError` that names it."""
    name = printable_name(path)
    if Path(path).is_dir():
        raise InputError(f"{name}: is a folder; {_EXPECTED}")
    try:
        if Path(path).suffix.lower() in HEIF:
            _register_heif()
        with warnings_lock, warnings.catch_warnings():  # large images are reduced below
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
        with image:
            yield image
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such image") from None
    except Image.DecompressionBombError as error:
        raise InputError(
            f"{name}: is too large ({error}); scale it down, say to 100 megapixels"
        ) from None
    except InputError:
        raise
    except Exception as error:  # decoders fail in many ways on broken files
        why = str(error).replace(str(path), name) or type(error).__name__
        raise InputError(f"{name}: cannot be read as an image ({why}); {_EXPECTED}") from None
