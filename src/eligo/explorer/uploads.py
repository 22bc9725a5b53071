"""Uploaded images: PNG, JPEG or WebP, checked before they are decoded.

A file of a few kilobytes can claim a billion pixels, so the size in its header is checked first.
Nothing is written to disk; an image is turned upright, converted to RGB and scaled down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from eligo.explorer.tools import RefusedError
from eligo.images import SIDEWAYS, orientation_of, turned

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 24_000_000
"""Most pixels of a file, before scaling."""
MAX_SIDE = 1024
"""Longer side after scaling."""
MIN_SIDE, MAX_RATIO = 16, 8
"""Limits of narrow images, which a processor that scales the shorter side would enlarge."""
_ROUNDING = 0.02  # relative tolerance of the shape
_DEPTH_MODES = ("L", "I;16", "I;16B", "I", "F")


def open_picture(data: bytes) -> Image.Image:
    """Return an upright RGB image of at most MAX_SIDE pixels a side."""
    with _opened(data, FORMATS) as picture:
        picture.draft("RGB", (MAX_SIDE, MAX_SIDE))  # a JPEG is decoded at a fraction of its size
        upright = ImageOps.exif_transpose(picture).convert("RGB")
        upright.thumbnail((MAX_SIDE, MAX_SIDE))
        return upright


def orientation_in(data: bytes) -> int:
    """Return the EXIF orientation."""
    with _opened(data, FORMATS) as picture:
        return orientation_of(picture)


def open_depth(data: bytes, size: tuple[int, int], orientation: int = 1) -> Image.Image:
    """Return a depth map with its stored values, turned and scaled like its image.

    Without an EXIF orientation of its own, it has that of the image, unless its shape is upright.
    """
    with _opened(data, ("PNG",)) as picture:
        if picture.mode not in _DEPTH_MODES:
            raise RefusedError(
                415,
                f"depth: got a PNG of mode {picture.mode}, expected one channel of 8 or 16 bits",
            )
        picture = _turned(picture, size, orientation)
        wide, high = picture.size
        if abs(wide * size[1] - high * size[0]) > _ROUNDING * wide * size[1]:
            raise RefusedError(
                400,
                f"depth: got {wide} x {high} pixels, expected the shape of the image, "
                f"{size[0]} x {size[1]}, or a multiple of it",
            )
        return picture.resize(size, Image.Resampling.NEAREST)


def _turned(depth: Image.Image, size: tuple[int, int], orientation: int) -> Image.Image:
    own = orientation_of(depth)
    is_upright = orientation in SIDEWAYS and (depth.width > depth.height) == (size[0] > size[1])
    if own == 1 and (not is_upright or depth.width == depth.height):
        own = orientation
    return depth if own == 1 else Image.fromarray(turned(np.array(depth), own))


@contextmanager
def _opened(data: bytes, formats: tuple[str, ...]) -> Iterator[Image.Image]:
    """Open an image after checking its header; decoder errors are refusals."""
    try:
        with Image.open(BytesIO(data), formats=formats) as picture:
            _check_size(*picture.size)
            yield picture
    except RefusedError:
        raise
    except UnidentifiedImageError:
        raise RefusedError(
            415, f"image: is not {' or '.join(formats)}; save the image in such a format"
        ) from None
    except Image.DecompressionBombError as error:
        raise RefusedError(413, f"image: {error}; scale it down") from None
    except Exception as error:  # decoders fail in many ways on damaged files
        raise RefusedError(
            400, f"image: cannot be read ({error or type(error).__name__}); save it anew"
        ) from None


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise RefusedError(
            413,
            f"image: got {width} x {height} pixels, expected at most {MAX_PIXELS // 1_000_000} "
            "million; scale it down",
        )
    if min(width, height) < MIN_SIDE or max(width, height) > MAX_RATIO * min(width, height):
        raise RefusedError(
            400,
            f"image: got {width} x {height} pixels, expected at least {MIN_SIDE} a side and none "
            f"{MAX_RATIO} times as long as the other; crop it",
        )
