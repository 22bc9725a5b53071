"""Augmentation of training images and captions, as in LAPS and SEPS.

Draws from torch's global generator, which the loop seeds for every example.
"""

import math

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

CHANGED = 0.2
"""Share of changed word pieces: half of them masked, a tenth replaced, the rest deleted."""
_SMALLEST = 0.6  # share of the area that a crop keeps at least
_TRIES = 10


def random_crop(
    image: UInt8[Tensor, "3 height width"], side: int, *, flip: bool = True
) -> UInt8[Tensor, "3 side side"]:
    """Crop 60-100 % of the area, sides at most 4:3; resize (bicubic), and mirror half the time."""
    height, width = image.shape[1:]
    for _ in range(_TRIES):
        share, stretch, down, right = torch.rand(4).tolist()
        area = (_SMALLEST + (1 - _SMALLEST) * share) * height * width
        ratio = math.exp((2 * stretch - 1) * math.log(4 / 3))
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
            image = image[:, top : top + rows, left : left + columns]
            break  # a very long image may have no such crop: it is not cropped
    resized = F.interpolate(
        image[None].float(), (side, side), mode="bicubic", antialias=True, align_corners=False
    )[0]
    if flip and torch.rand(()) < 0.5:
        resized = resized.flip(-1)
    return resized.round().clamp(0, 255).to(torch.uint8)


def change_pieces(pieces: list[int], mask_id: int | None, num_pieces: int) -> list[int]:
    """Mask, replace or delete a fifth of the pieces of a text (without [CLS] and [SEP]).

    Without a mask token, as in CLIP, pieces are deleted instead of masked. A text that would lose
    all its pieces is returned unchanged.
    """
    changed = []
    draws = torch.rand(len(pieces), 2).tolist()
    for piece, (chance, kind) in zip(pieces, draws, strict=True):
        if chance >= CHANGED:
            changed.append(piece)
        elif kind < 0.5:
            changed += [] if mask_id is None else [mask_id]
        elif kind < 0.6:
            changed.append(int(torch.randint(num_pieces, ())))
    return changed or pieces
