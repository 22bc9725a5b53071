"""Picture of the surviving vision tokens, one panel per stage.

Dropped tokens are greyed and lightened, kept ones stay in colour with an outline.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.report.pictures import contact_sheet

_PANEL = 336  # minimum side in pixels, so that outlines do not hide tokens
_LINE = (20, 20, 28)


def kept_picture(image: Image.Image, kept: Bool[Tensor, "rows columns"]) -> Image.Image:
    """Return the image with dropped tokens greyed and lightened, and kept ones outlined."""
    rows, columns = kept.shape
    scale = max(1, -(-_PANEL // max(image.width, image.height)))
    # A whole number of pixels per token.
    width = max(columns * round(image.width * scale / columns), columns)
    height = max(rows * round(image.height * scale / rows), rows)
    pixels = np.asarray(image.convert("RGB").resize((width, height)), dtype=np.float32)
    inside = np.repeat(np.repeat(kept.cpu().numpy(), height // rows, 0), width // columns, 1)
    grey = pixels.mean(-1, keepdims=True) * 0.3 + 255 * 0.66
    shown = np.where(inside[..., None], pixels, grey)
    shown[rim(inside)] = _LINE
    return Image.fromarray(shown.round().astype(np.uint8))


def rim(inside: np.ndarray) -> np.ndarray:
    """Return the kept pixels with a dropped neighbour: a line of one pixel."""
    padded = np.pad(inside, 1, mode="edge")
    around = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~around


def stages_picture(
    images: Sequence[Image.Image],
    stages: Sequence[tuple[str, Sequence[Bool[Tensor, "_ _"]]]],
    *,
    title: str = "",
    caption: str = "",
) -> Image.Image:
    """Return the image and what each stage kept of it; one row per image (or tile).

    A stage is its heading and one mask per image.
    """
    wrong = [heading for heading, masks in stages if len(masks) != len(images)]
    if wrong or not images:
        raise InputError(f"got {len(images)} images and another number of masks for {wrong}")
    rows = [
        [image, *(kept_picture(image, masks[place]) for _, masks in stages)]
        for place, image in enumerate(images)
    ]
    captions = [""] * (len(images) - 1) + [caption] if caption else ()
    heads = ("image", *(heading for heading, _ in stages))
    return contact_sheet(rows, columns=heads, captions=captions, title=title, cell=_PANEL)
