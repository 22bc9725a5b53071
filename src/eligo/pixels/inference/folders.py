"""Folders of frames: images, and depth files of the same names."""

from collections.abc import Iterator
from pathlib import Path

from jaxtyping import Float, UInt8
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import InputsConfig
from eligo.pixels.data.pictures import read_photo, read_stored_depth

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_DEPTHS = (".png", ".npy", ".tif", ".tiff")


def frame_files(
    images: str | Path, depths: str | Path | None = None
) -> list[tuple[Path, Path | None]]:
    """Return the images of a folder by name, each with its depth: the file of its name, or None."""
    folder = Path(images)
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in _IMAGES)
    if not files:
        raise InputError(f"{folder}: holds no images; expected {', '.join(_IMAGES)} files")
    if depths is None:
        return [(path, None) for path in files]
    stored = {path.stem: path for path in Path(depths).glob("*") if path.suffix in _DEPTHS}
    missing = [path.name for path in files if path.stem not in stored]
    if missing:
        raise InputError(
            f"{depths}: holds no depth for {missing[0]} ({len(missing)} of {len(files)} images); "
            f"expected a file of the same name ({', '.join(_DEPTHS)})"
        )
    return [(path, stored[path.stem]) for path in files]


def read_frames(
    images: str | Path, depths: str | Path | None = None, *, inputs: InputsConfig | None = None
) -> Iterator[tuple[UInt8[Tensor, "3 height width"], Float[Tensor, "height width"] | None]]:
    """Yield the frames of a folder for `Segmenter.segment_stream`, one at a time."""
    inputs = inputs or InputsConfig()
    if inputs.depth == "sun16":
        raise InputError("inputs.depth: sun16 is not a format of streams; use `predict`")
    for path, depth in frame_files(images, depths):
        photo = read_photo(path)
        yield photo.pixels, None if depth is None else read_stored_depth(depth, inputs, photo)[0]
