"""Picture files: colour images, depth, labels; each problem names the file."""

import logging
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.images import read_stored, upright_rgb
from eligo.pixels.data.config import InputsConfig
from eligo.pixels.data.inputs import decode_depth, normalise_metres

MIN_SIZE = 32
_NEAR, _FAR = 0.3, 10.0  # metres within which, or beyond which, no whole image lies
_log = logging.getLogger("eligo.pixels")


def read_rgb(path: Path) -> UInt8[Tensor, "3 height width"]:
    """A colour image."""
    return rgb_pixels(read_stored(path), path)


def rgb_pixels(image: Image.Image, name: Path) -> UInt8[Tensor, "3 height width"]:
    """The pixels of a colour image, which errors call `name`."""
    pixels = np.array(upright_rgb(image))
    check_size(name, *pixels.shape[:2])
    return torch.from_numpy(pixels).permute(2, 0, 1)


def check_size(name: Path, height: int, width: int) -> None:
    """Refuse an image that is too small."""
    if min(height, width) < MIN_SIZE:
        raise InputError(
            f"{name}: got {height} x {width} pixels, expected at least {MIN_SIZE} x {MIN_SIZE}; "
            "enlarge the image"
        )


def read_depth(
    path: Path, inputs: InputsConfig, like: tuple[Path, Tensor]
) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]]:
    """The depth of an image (`like`: its path and pixels), and where it is known."""
    if path.suffix == ".npy":
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as an array ({error})") from error
    else:
        values = np.array(read_stored(path))
    if values.ndim == 3 and values.shape[2] == 3 and inputs.depth == "png8":
        values = values[..., 0]  # some store it three times
    _check_shape(path, values, like)
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


def read_label(
    path: Path, num_classes: int, like: tuple[Path, Tensor]
) -> UInt8[Tensor, "height width"]:
    """Classes 1..K on disk as 0..K-1; 0 as 255, which is ignored."""
    values = np.array(read_stored(path))
    _check_shape(path, values, like)
    if values.min() < 0 or values.max() > num_classes:
        raise InputError(
            f"{path}: got label {values.max() if values.max() > num_classes else values.min()}, "
            f"expected 1 to {num_classes}, the number of classes, or 0 for what is ignored"
        )
    return torch.from_numpy(values.astype(np.uint8) - np.uint8(1))


def _check_shape(path: Path, values: np.ndarray, like: tuple[Path, Tensor]) -> None:
    if values.ndim != 2:
        raise InputError(f"{path}: got shape {values.shape}, expected one channel")
    image, pixels = like
    if values.shape != tuple(pixels.shape[-2:]):
        raise InputError(
            f"{path}: got {values.shape[0]} x {values.shape[1]} pixels, but {image} has "
            f"{pixels.shape[-2]} x {pixels.shape[-1]}; expected the same size"
        )
