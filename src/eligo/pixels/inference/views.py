"""One image in several views: scaled, mirrored, through a sliding window. Section 7.

Every view is a whole run of the network; their softmaxes are averaged. Sizes of scaled views are
rounded up to multiples of 32, the last stage's stride. Colours are mixed, depth is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.pixels.data.batch import Batch
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch

MULTI_SCALE = (0.5, 0.75, 1.0, 1.25, 1.5)
WINDOW = (480, 640)
_STRIDE = 2 / 3
_MULTIPLE = 32


@dataclass(frozen=True)
class Views:
    """How an image is looked at; the default is once, whole."""

    scales: tuple[float, ...] = (1.0,)
    """Sizes, as shares of the image's own."""
    flip: bool = False
    """Also mirrored."""
    window: tuple[int, int] | None = None
    """Height and width of the window that slides over it; none: whole."""

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise InputError(f"scales: got {self.scales}, expected numbers above 0")
        if self.window is not None and min(self.window) < _MULTIPLE:
            raise InputError(f"window: got {self.window}, expected at least 32 x 32")


class Seen(NamedTuple):
    """What the network is shown."""

    rgb: Tensor  # (batch, 3, height, width)
    depth: Tensor | None
    depth_mask: Tensor | None
    text: TextBatch | None


def probabilities(
    model: PixelsModel, batch: Batch, views: Views
) -> Float[Tensor, "batch classes height width"]:
    """Mean softmax over all views, at the size of the images."""
    size = batch.rgb.shape[-2:]
    shown = Seen(batch.rgb, batch.depth, batch.depth_mask, batch.text)
    total, count = torch.zeros((), device=batch.rgb.device), 0
    for scale in views.scales:
        seen = shown if views.scales == (1.0,) else scaled(shown, scale)
        for mirrored in (False, True) if views.flip else (False,):
            found = _look(model, flipped(seen) if mirrored else seen, views.window)
            found = found.flip(-1) if mirrored else found
            if found.shape[-2:] != size:
                found = F.interpolate(found, size=size, mode="bilinear", align_corners=False)
            total, count = total + found, count + 1
    return total / count


def scaled(seen: Seen, scale: float) -> Seen:
    """The images in another size, sides rounded up to multiples of 32."""
    height, width = (
        ceil(round(side * scale, 6) / _MULTIPLE) * _MULTIPLE for side in seen.rgb.shape[-2:]
    )
    return resized(seen, (height, width))


def resized(seen: Seen, size: tuple[int, int], *, antialias: bool = False) -> Seen:
    """The images in this size; with `antialias`, what is made smaller is smoothed first."""
    if size == tuple(seen.rgb.shape[-2:]):
        return seen

    def taken(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return F.interpolate(x.float(), size=size, mode="nearest-exact").to(x.dtype)

    rgb = F.interpolate(
        seen.rgb, size=size, mode="bilinear", align_corners=False, antialias=antialias
    )
    return Seen(rgb, taken(seen.depth), taken(seen.depth_mask), seen.text)


def flipped(seen: Seen) -> Seen:
    """The images mirrored."""
    depth, mask = (None if x is None else x.flip(-1) for x in (seen.depth, seen.depth_mask))
    return Seen(seen.rgb.flip(-1), depth, mask, seen.text)


def _look(model: PixelsModel, seen: Seen, window: tuple[int, int] | None) -> Tensor:
    if window is None:
        return _softmax(model, seen)
    height, width = seen.rgb.shape[-2:]
    high, wide = min(window[0], height), min(window[1], width)
    total = torch.zeros((), device=seen.rgb.device)
    times = torch.zeros(1, 1, height, width, device=seen.rgb.device)
    for top in _starts(height, high):
        for left in _starts(width, wide):
            place = (..., slice(top, top + high), slice(left, left + wide))
            depth, mask = (None if x is None else x[place] for x in (seen.depth, seen.depth_mask))
            part = Seen(seen.rgb[place], depth, mask, seen.text)
            around = (left, width - left - wide, top, height - top - high)
            total = total + F.pad(_softmax(model, part), around)
            times[place] += 1
    return total / times


def _starts(size: int, window: int) -> Iterator[int]:
    """Where windows begin, two thirds of one apart; the last ends where the image does."""
    step = ceil(window * _STRIDE)
    count = ceil((size - window) / step) + 1
    for number in range(count):
        yield min(number * step, size - window)


def _softmax(model: PixelsModel, seen: Seen) -> Tensor:
    return model(*seen, maps=False).logits.softmax(1)
