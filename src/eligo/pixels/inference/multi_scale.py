"""Multi-scale, mirrored and sliding-window inference: the softmax is averaged over all passes.

Sizes of scaled images are rounded up to multiples of 32, the last stage's stride. Colours are
resized bilinearly, depth with nearest neighbours.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.pixels.config import MIN_SIZE
from eligo.pixels.data.batch import Batch
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch

MULTI_SCALE = (0.5, 0.75, 1.0, 1.25, 1.5)
WINDOW = (480, 640)
_STRIDE = 2 / 3
_MULTIPLE = 32


@dataclass(frozen=True)
class MultiScale:
    """Passes over each image; the default is one, over the whole image."""

    scales: tuple[float, ...] = (1.0,)
    """Scale factors."""
    flip: bool = False
    """Also mirror the image."""
    window: tuple[int, int] | None = None
    """Height and width of a sliding window; none: the whole image."""

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise InputError(f"scales: got {self.scales}, expected numbers above 0")
        if self.window is not None and min(self.window) < MIN_SIZE:
            raise InputError(f"window: got {self.window}, expected at least 32 x 32")


class ModelInputs(NamedTuple):
    """Inputs of the network."""

    rgb: Tensor  # (batch, 3, height, width)
    depth: Tensor | None
    depth_mask: Tensor | None
    text: TextBatch | None

    def map(self, change: Callable[[Tensor], Tensor]) -> "ModelInputs":
        """Return the inputs with `change` applied to RGB, depth and mask."""
        depth, mask = (None if x is None else change(x) for x in (self.depth, self.depth_mask))
        return ModelInputs(change(self.rgb), depth, mask, self.text)


def probabilities(
    model: PixelsModel, batch: Batch, passes: MultiScale
) -> Float[Tensor, "batch classes height width"]:
    """Return the mean softmax over all passes, at the size of the images."""
    size = batch.rgb.shape[-2:]
    whole = ModelInputs(batch.rgb, batch.depth, batch.depth_mask, batch.text)
    total, count = torch.zeros((), device=batch.rgb.device), 0
    for scale in passes.scales:
        inputs = whole if passes.scales == (1.0,) else scaled(whole, scale)
        for flip in (False, True) if passes.flip else (False,):
            given = inputs.map(lambda x: x.flip(-1)) if flip else inputs
            scores = _windowed(model, given, passes.window)
            scores = scores.flip(-1) if flip else scores
            if scores.shape[-2:] != size:
                scores = F.interpolate(scores, size=size, mode="bilinear", align_corners=False)
            total, count = total + scores, count + 1
    return total / count


def scaled(inputs: ModelInputs, scale: float) -> ModelInputs:
    """Return the inputs scaled, their sides rounded up to multiples of 32."""
    height, width = (
        ceil(round(side * scale, 6) / _MULTIPLE) * _MULTIPLE for side in inputs.rgb.shape[-2:]
    )
    return resized(inputs, (height, width))


def resized(inputs: ModelInputs, size: tuple[int, int], *, antialias: bool = False) -> ModelInputs:
    """Return the inputs in this size."""
    if size == tuple(inputs.rgb.shape[-2:]):
        return inputs
    rgb = F.interpolate(
        inputs.rgb, size=size, mode="bilinear", align_corners=False, antialias=antialias
    )
    depth, mask = (
        None if x is None else F.interpolate(x.float(), size=size, mode="nearest-exact").to(x.dtype)
        for x in (inputs.depth, inputs.depth_mask)
    )
    return ModelInputs(rgb, depth, mask, inputs.text)


def _windowed(model: PixelsModel, inputs: ModelInputs, window: tuple[int, int] | None) -> Tensor:
    """Softmax of the whole image, or averaged over the positions of a window."""
    if window is None:
        return _softmax(model, inputs)
    height, width = inputs.rgb.shape[-2:]
    high, wide = min(window[0], height), min(window[1], width)
    total = torch.zeros((), device=inputs.rgb.device)
    count = torch.zeros(1, 1, height, width, device=inputs.rgb.device)
    for top in _starts(height, high):
        for left in _starts(width, wide):
            place = (..., slice(top, top + high), slice(left, left + wide))
            part = _softmax(model, inputs.map(lambda x, place=place: x[place]))
            total = total + F.pad(part, (left, width - left - wide, top, height - top - high))
            count[place] += 1
    return total / count


def _starts(size: int, window: int) -> Iterator[int]:
    """Yield the starts of windows, 2/3 of a window apart; the last one ends with the image."""
    step = ceil(window * _STRIDE)
    for number in range(ceil((size - window) / step) + 1):
        yield min(number * step, size - window)


def _softmax(model: PixelsModel, inputs: ModelInputs) -> Tensor:
    return model(*inputs, maps=False).logits.softmax(1)
