"""Picture files: colour images, depth, labels; each problem names the file."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.images import SIDEWAYS, orientation_of, read_stored, turned, upright_rgb, upright_size
from eligo.pixels.config import InputsConfig
from eligo.pixels.data.inputs import decode_depth, normalise_metres

MIN_SIZE = 32
_NEAR, _FAR = 0.3, 10.0  # metres within which, or beyond which, no whole image lies
IGNORED = 255
_PLUS_ONE = "; if 0 is a class and 255 ignored, add 1 to all labels (255 becomes 0)"
_LOOKED_AT = 32  # label files
_log = logging.getLogger("eligo.pixels")


class Photo(NamedTuple):
    """A colour image, upright, and how it was stored: depth and labels beside it lie the same."""

    path: Path
    pixels: UInt8[Tensor, "3 height width"]
    orientation: int
    """EXIF's number of how it was stored."""
    shape: tuple[int, int]
    """Height and width, upright, before a very large image was made smaller."""


def read_photo(path: Path) -> Photo:
    """A colour image of a file."""
    return photo_of(read_stored(path), path)


def photo_of(image: Image.Image, name: Path) -> Photo:
    """A colour image, which errors call `name`."""
    orientation = orientation_of(image)
    width, height = image.size
    shape = (width, height) if orientation in SIDEWAYS else (height, width)
    _check_size(name, shape)
    pixels = torch.from_numpy(np.array(upright_rgb(image))).permute(2, 0, 1)
    if tuple(pixels.shape[1:]) != shape:
        _log.warning(
            "%s: got %d x %d pixels, and looks at %d x %d, which is also the size of the labels",
            name, *shape, *pixels.shape[1:],
        )  # fmt: skip
    return Photo(name, pixels, orientation, shape)


def look_at_photo(path: Path) -> Photo:
    """As `read_photo`, without its pixels: whether it can be read, its size and orientation."""
    width, height = upright_size(path)
    with Image.open(path) as image:
        orientation = orientation_of(image)
    _check_size(path, (height, width))
    return Photo(
        path,
        torch.zeros((), dtype=torch.uint8).expand(3, height, width),
        orientation,
        (height, width),
    )


def _check_size(name: Path, shape: tuple[int, int]) -> None:
    if min(shape) < MIN_SIZE:
        raise InputError(
            f"{name}: got {shape[0]} x {shape[1]} pixels, expected at least {MIN_SIZE} x "
            f"{MIN_SIZE}; enlarge the image"
        )


def read_depth(
    path: Path, inputs: InputsConfig, photo: Photo
) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]]:
    """The depth of an image, upright as it is, and where it is known."""
    orientation = 1
    if path.suffix == ".npy":
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as an array ({error})") from error
    else:
        values, orientation = _stored(path)
    if values.ndim == 3 and values.shape[2] == 3 and inputs.depth == "png8":
        values = values[..., 0]  # some store it three times
    values = _aligned(path, values, orientation, photo)
    if values.dtype.kind not in "uif":
        raise InputError(f"{path}: got {values.dtype} values, expected numbers")
    if inputs.depth == "png8" and values.dtype != np.uint8:
        raise InputError(f"{path}: got {values.dtype} values, expected 8 bits (inputs.depth png8)")
    if inputs.depth == "sun16" and (
        values.dtype.kind == "f"
        or values.dtype.itemsize < 2
        or values.min() < 0
        or values.max() > 65535
    ):
        raise InputError(
            f"{path}: got {values.dtype} values, expected 16 bits (inputs.depth sun16)"
        )
    return decode_depth(values, inputs)


def remark_depth(
    path: Path,
    depth: tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]],
    inputs: InputsConfig,
    flags: tuple[str, str] = ("--depth_format", "--depth_scale"),
) -> None:
    """Say if all of it is so near or so far that it must be stored in another way."""
    z, known = depth
    if inputs.depth != "metric" or not bool(known.any()):
        return
    near, far = (float(normalise_metres(torch.tensor(metres))) for metres in (_NEAR, _FAR))
    if float(z[known].max()) < near:
        where = f"within {_NEAR} m"
    elif float(z[known].min()) >= far:
        where = f"beyond {_FAR:g} m"
    else:
        return
    _log.warning(
        "%s: got everything %s at %g units per metre; is it stored in 8 bits (%s png8), or in "
        "other units (%s 1 for metres)?",
        path, where, inputs.depth_scale, *flags,
    )  # fmt: skip


def read_label(path: Path, num_classes: int, photo: Photo) -> UInt8[Tensor, "height width"]:
    """Classes 1..K on disk as 0..K-1; 0 as 255, which is ignored. Upright as the image is."""
    values = _aligned(path, *_stored(path), photo)
    if values.min() < 0 or values.max() > num_classes:
        highest = values.max()
        hint = _PLUS_ONE if highest == IGNORED else ""
        raise InputError(
            f"{path}: got label {highest if highest > num_classes else values.min()}, "
            f"expected 1 to {num_classes}, the number of classes, or 0 for what is ignored{hint}"
        )
    return torch.from_numpy(values.astype(np.uint8) - np.uint8(1))


def remark_labels(paths: Sequence[Path], num_classes: int) -> None:
    """Say if labels look as if 0 were the first class, and not what is ignored."""
    highest, zeros = 0, 0
    for path in paths[:_LOOKED_AT]:
        try:
            values = np.array(read_stored(path))
        except InputError:
            return  # who reads them says so
        highest, zeros = max(highest, int(values.max())), zeros + bool((values == 0).any())
    if zeros and highest == num_classes - 1:
        _log.warning(
            "%s: the first %d label files go from 0 to %d, and none holds %d, the last of %d "
            "classes: 0 is ignored here, and classes count from 1%s",
            paths[0].parent, len(paths[:_LOOKED_AT]), highest, num_classes, num_classes, _PLUS_ONE,
        )  # fmt: skip


def _stored(path: Path) -> tuple[np.ndarray, int]:
    """The numbers of an image file, and EXIF's number of how they lie."""
    image = read_stored(path)
    return np.array(image), orientation_of(image)


def _aligned(path: Path, values: np.ndarray, orientation: int, photo: Photo) -> np.ndarray:
    """Values of every pixel of a photo, turned and made smaller as it was.

    A file with an EXIF orientation of its own is turned by that. Another one of the size in which
    the photo is stored lies as the photo does, and is turned with it; so does one of a size that
    does not tell (a square, or a photo upside down). One of the upright size stays as it is.
    """
    if values.ndim != 2:
        raise InputError(f"{path}: got shape {values.shape}, expected one channel")
    stored = photo.shape[::-1] if photo.orientation in SIDEWAYS else photo.shape
    if orientation == 1 and values.shape == stored:
        orientation = photo.orientation
    values = turned(values, orientation)
    if values.shape != photo.shape:
        raise InputError(
            f"{path}: got {values.shape[0]} x {values.shape[1]} pixels, but {photo.path} has "
            f"{photo.shape[0]} x {photo.shape[1]}; expected the same size"
        )
    places = (
        (np.arange(few) * 2 + 1) * many // (2 * few)  # the middle of every part
        for few, many in zip(photo.pixels.shape[1:], photo.shape, strict=True)
    )
    small = tuple(photo.pixels.shape[1:]) != photo.shape
    return values[np.ix_(*places)] if small else values
