"""Photos, depth and labels: from files or arrays to network inputs. Errors name the file.

Depth: `png8` z = (v/255 - 0.48) / 0.28, where 0 is a value; `metric` m = v / depth_scale, 0 or NaN
unknown, z = (min(m, 10)/10 - 0.48) / 0.28; `sun16` (v >> 3) | (v << 13) millimetres, then the same.
"""

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.images import (
    SIDEWAYS,
    ImageLike,
    as_image,
    orientation_of,
    read_stored,
    turned,
    upright_rgb,
    upright_size,
)
from eligo.pixels.config import IGNORED, MIN_SIZE, ChannelOrder, InputsConfig

DepthMap: TypeAlias = tuple[
    Float[Tensor, "*batch 1 height width"], Bool[Tensor, "*batch 1 height width"]
]
"""Normalised depth, 0 where it is unknown, and the mask of known pixels."""

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, red first
_DEPTH_MEAN, _DEPTH_STD = 0.48, 0.28
_FARTHEST = 10.0  # metres
_SUN_SCALE = 1000.0  # units per metre of sun16
_NEAR, _FAR = 0.3, 10.0  # metres; an image entirely nearer or farther is implausible
_FROM_0 = "; if 0 is a class and 255 ignored, give --data.label_offset 0 --data.ignore_index 255"
_FROM_1 = "; if classes count from 1 and 0 is ignored, leave out label_offset and ignore_index"
_RATIO = 0.02  # largest difference of the shapes of an image and of depth that is resized
_OTHER_DEPTH = (
    "; if it shows exactly what the image shows, --inputs.resize_depth (in predict: --resize_depth)"
    " resizes it, else register it to the image first"
)
_OTHER_LABEL = "; resize it with nearest neighbours"
_SAMPLED = 32  # label files
_log = logging.getLogger("eligo.pixels")


class Photo(NamedTuple):
    """An upright colour image, and how it was stored, for reading its depth and labels."""

    path: Path
    pixels: UInt8[Tensor, "3 height width"]
    orientation: int
    """EXIF orientation of the stored image."""
    shape: tuple[int, int]
    """Upright height and width, before a very large image was reduced."""


class LabelNumbers(NamedTuple):
    """How label files number the classes."""

    num_classes: int
    first: int = 1
    """The number of the first class."""
    ignored: int | None = 0
    """The number of pixels without a label."""

    @property
    def last(self) -> int:
        """The number of the last class."""
        return self.first + self.num_classes - 1


def read_photo(image: ImageLike) -> Photo:
    """Load a photo; errors call an image in memory `image`."""
    if isinstance(image, str | Path):
        return _photo(read_stored(image), Path(image))
    if isinstance(image, Image.Image):
        return _photo(image, Path("image"))
    photo = _photo(as_image(image), Path("image"))
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.shape[-2:]
    return photo._replace(shape=(height, width))


def _photo(image: Image.Image, name: Path) -> Photo:
    orientation = orientation_of(image)
    width, height = image.size
    shape = (width, height) if orientation in SIDEWAYS else (height, width)
    _check_size(name, shape)
    pixels = torch.from_numpy(np.array(upright_rgb(image))).permute(2, 0, 1)
    if tuple(pixels.shape[1:]) != shape:
        _log.warning(
            "%s: reduced from %d x %d to %d x %d pixels, which is also the size of the labels",
            name, *shape, *pixels.shape[1:],
        )  # fmt: skip
    return Photo(name, pixels, orientation, shape)


def check_photo(path: Path) -> Photo:
    """Check that a photo can be read; returns it without its pixels, at less cost."""
    width, height = upright_size(path)
    with Image.open(path) as image:
        orientation = orientation_of(image)
    _check_size(path, (height, width))
    no_pixels = torch.zeros((), dtype=torch.uint8).expand(3, height, width)
    return Photo(path, no_pixels, orientation, (height, width))


def _check_size(name: Path, shape: tuple[int, int]) -> None:
    if min(shape) < MIN_SIZE:
        raise InputError(
            f"{name}: got {shape[0]} x {shape[1]} pixels, expected at least {MIN_SIZE} x "
            f"{MIN_SIZE}; enlarge the image"
        )


@cache
def _colour_statistics(device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(part, device=device).view(3, 1, 1) for part in (_MEAN, _STD))


def normalise_rgb(
    rgb: UInt8[Tensor, "*batch 3 height width"], channel_order: ChannelOrder = "rgb"
) -> Float[Tensor, "*batch 3 height width"]:
    """Subtract ImageNet's mean and divide by its deviation, by position and not by colour.

    With bgr, blue gets the mean of red, as in the training of the official bgr weights.
    """
    mean, std = _colour_statistics(rgb.device)
    ordered = rgb.flip(-3) if channel_order == "bgr" else rgb
    floats = ordered.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return floats.div_(255).sub_(mean).div_(std)


def normalise_metres(metres: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return normalised metric depth, clamped to ten metres."""
    return (metres.clamp(max=_FARTHEST) / _FARTHEST - _DEPTH_MEAN) / _DEPTH_STD


def decode_depth(values: Shaped[np.ndarray, "height width"], inputs: InputsConfig) -> DepthMap:
    """Return stored depth values as network inputs."""
    return normalise_depth(_as_floats(values, inputs), inputs)


def normalise_depth(
    depth: Float[Tensor, "*batch 1 height width"], inputs: InputsConfig
) -> DepthMap:
    """Return what `read_stored_depth` returned, of one image or several, as network inputs."""
    if inputs.depth == "png8":
        known = depth.isfinite()
        return torch.where(known, (depth / 255 - _DEPTH_MEAN) / _DEPTH_STD, 0.0), known
    metres = depth / (_SUN_SCALE if inputs.depth == "sun16" else inputs.depth_scale)
    known = metres.isfinite() & (metres > 0)
    return torch.where(known, normalise_metres(metres.nan_to_num()), 0.0), known


def _as_floats(
    values: Shaped[np.ndarray, "height width"], inputs: InputsConfig
) -> Float[Tensor, "1 height width"]:
    if inputs.depth == "sun16":
        stored = values.astype(np.uint16)
        values = (stored >> np.uint16(3)) | (stored << np.uint16(13))
    return torch.from_numpy(values.astype(np.float32))[None]


def read_depth(depth: ImageLike, inputs: InputsConfig, photo: Photo) -> DepthMap:
    """Load the depth of a photo, upright as the photo is.

    A PNG, TIFF or .npy file, a PIL image, or an array or a tensor of shape (height, width).
    """
    return normalise_depth(read_stored_depth(depth, inputs, photo), inputs)


def read_stored_depth(
    depth: ImageLike, inputs: InputsConfig, photo: Photo, scale: float | None = None
) -> Float[Tensor, "1 height width"]:
    """Load depth as `read_depth` does, for `normalise_depth`: values as stored, sun16 in mm.

    With `scale`, metric depth has so many units per metre, and is returned in those of `inputs`.
    """
    name, values, orientation = _stored_values(depth, "depth")
    if values.ndim == 3 and values.shape[2] <= 4:
        values = _one_channel(name, values, inputs)
    if inputs.resize_depth:
        values = _resized(name, values, orientation, photo)
    values = _aligned(name, values, orientation, photo, _OTHER_DEPTH)
    if values.dtype.kind not in "uif":
        raise InputError(f"{name}: got {values.dtype} values, expected numbers")
    if inputs.depth == "png8" and values.dtype != np.uint8:
        raise InputError(f"{name}: got {values.dtype} values, expected 8 bits (inputs.depth png8)")
    if inputs.depth == "sun16" and (
        values.dtype.kind == "f"
        or values.dtype.itemsize < 2
        or values.min() < 0
        or values.max() > 65535
    ):
        raise InputError(
            f"{name}: got {values.dtype} values, expected 16 bits (inputs.depth sun16)"
        )
    stored = _as_floats(values, inputs)
    if scale is None or inputs.depth != "metric":
        return stored
    return stored * (inputs.depth_scale / scale)


def _one_channel(name: str | Path, values: np.ndarray, inputs: InputsConfig) -> np.ndarray:
    """One channel of depth that some data sets store three times; colours are refused."""
    same = bool((values == values[..., :1]).all())
    if values.shape[2] == 1 or (same and values.shape[2] == 3 and inputs.depth == "png8"):
        return values[..., 0]
    kind = "equal channels" if same else "different channels, as of a colour map,"
    raise InputError(
        f"{name}: got {values.shape[2]} {kind} in depth; expected one channel of distances: export "
        "depth without colours, such as a 16-bit PNG in millimetres"
    )


def _resized(name: str | Path, values: np.ndarray, orientation: int, photo: Photo) -> np.ndarray:
    """Depth in the size of its photo, as stored: `_aligned` turns it."""
    if orientation == 1:
        sizes = (_stored_shape(photo), photo.shape)
    else:
        sizes = (photo.shape[::-1] if orientation in SIDEWAYS else photo.shape,)
    for size in sizes:
        if abs(values.shape[0] * size[1] / (values.shape[1] * size[0]) - 1) <= _RATIO:
            return _nearest(values, size)
    raise InputError(
        f"{name}: got {values.shape[0]} x {values.shape[1]} pixels of depth for an image of "
        f"{photo.shape[0]} x {photo.shape[1]}: the shapes differ, so the two cameras do not see "
        "the same; expected depth that is registered to the image"
    )


def _nearest(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Values resized with nearest neighbours."""
    centres = (
        (np.arange(n) * 2 + 1) * old // (2 * n) for n, old in zip(size, values.shape, strict=True)
    )
    return values[np.ix_(*centres)]


def check_depth_range(
    depth: DepthMap,
    name: str | Path,
    inputs: InputsConfig,
    flags: tuple[str, str] = ("--depth_format", "--depth_scale"),
) -> None:
    """Warn if all depths are implausibly near or far, which suggests a wrong unit."""
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
        name, where, inputs.depth_scale, *flags,
    )  # fmt: skip


def read_label(path: Path, numbers: LabelNumbers, photo: Photo) -> UInt8[Tensor, "height width"]:
    """Load labels, upright as the photo is: classes become 0..K-1, other pixels 255."""
    name, values, orientation = _stored_values(path, "label")
    if values.dtype.kind not in "uib" or values.ndim == 3:
        kind = "colours" if values.ndim == 3 else f"{values.dtype} values"
        raise InputError(f"{path}: got {kind} as labels, expected a whole number for every pixel")
    values = _aligned(name, values, orientation, photo, _OTHER_LABEL).astype(np.int64)
    ignored = values == numbers.ignored
    wrong = ~ignored & ((values < numbers.first) | (values > numbers.last))
    if wrong.any():
        found = values[wrong]
        label = found.max() if found.max() > numbers.last else found.min()
        hint = _FROM_0 if label == IGNORED and numbers.first == 1 else ""
        hint = _FROM_1 if label == numbers.num_classes and numbers.first == 0 else hint
        unlabelled = "" if numbers.ignored is None else f", or {numbers.ignored} for ignored pixels"
        raise InputError(
            f"{path}: got label {label}, expected {numbers.first} to {numbers.last} for "
            f"{numbers.num_classes} classes{unlabelled}{hint}"
        )
    classes = np.where(ignored, IGNORED, values - numbers.first)
    return torch.from_numpy(classes.astype(np.uint8))


def check_label_range(paths: Sequence[Path], numbers: LabelNumbers) -> None:
    """Warn if labels seem to use 0 for the first class where it means ignored."""
    num_classes = numbers.num_classes
    if (numbers.first, numbers.ignored) != (1, 0):
        return
    highest, zeros = 0, 0
    for path in paths[:_SAMPLED]:
        try:
            values = np.array(read_stored(path))
        except InputError:
            return  # raised again where the label is used
        highest, zeros = max(highest, int(values.max())), zeros + bool((values == 0).any())
    if zeros and highest == num_classes - 1:
        _log.warning(
            "%s: the first %d label files go from 0 to %d, and none holds %d, the last of %d "
            "classes: 0 is ignored here, and classes count from 1%s",
            paths[0].parent, len(paths[:_SAMPLED]), highest, num_classes, num_classes, _FROM_0,
        )  # fmt: skip


def _stored_values(
    source: ImageLike, kind: Literal["depth", "label"]
) -> tuple[str | Path, np.ndarray, int]:
    """Name, values and EXIF orientation of a file, an image or an array, as stored."""
    name: str = kind
    if isinstance(source, str | Path):
        name, path = str(source), Path(source)
        if path.suffix == ".npy":
            try:
                return name, np.load(path, allow_pickle=False), 1
            except (OSError, ValueError) as error:
                raise InputError(f"{path}: cannot be read as an array ({error})") from error
        source = read_stored(path)
    if isinstance(source, Image.Image):
        if kind == "depth" and source.mode in ("P", "PA"):
            raise InputError(
                f"{name}: got a palette of colours as depth; expected distances: export depth "
                "without colours, such as a 16-bit PNG in millimetres"
            )
        return name, np.array(source), orientation_of(source)
    if isinstance(source, Tensor):
        source = source.detach().cpu()
        source = (source.float() if source.is_floating_point() else source).numpy()
    if not isinstance(source, np.ndarray):
        raise InputError(
            f"{name}: got {type(source).__name__}, expected a path, a PIL image, a NumPy array or "
            "a tensor"
        )
    return name, source, 1


def _stored_shape(photo: Photo) -> tuple[int, int]:
    height, width = photo.shape
    return (width, height) if photo.orientation in SIDEWAYS else (height, width)


def _aligned(
    name: str | Path, values: np.ndarray, orientation: int, photo: Photo, way: str
) -> np.ndarray:
    """Values for every pixel of a photo, turned and reduced as the photo was.

    A file with an EXIF orientation is turned by it. Without one, a file of the size in which the
    photo is stored is turned with the photo (also if the size is ambiguous: a square, or a photo
    upside down); a file of the upright size stays as it is.
    """
    if values.ndim != 2:
        raise InputError(f"{name}: got shape {values.shape}, expected (height, width)")
    if orientation == 1 and values.shape == _stored_shape(photo):
        orientation = photo.orientation
    values = turned(values, orientation)
    if values.shape != photo.shape:
        raise InputError(
            f"{name}: got {values.shape[0]} x {values.shape[1]} pixels, but {photo.path} has "
            f"{photo.shape[0]} x {photo.shape[1]}; expected the same size{way}"
        )
    size = tuple(photo.pixels.shape[1:])
    return values if size == photo.shape else _nearest(values, size)
