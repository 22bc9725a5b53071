"""Augmentation of training images: mirror, scale, crop.

Images stay bytes until they are on the device, as in the original, where scaled colours are whole
numbers too. Departure from the original: depth is resized with nearest neighbours rather than
bilinearly, which would invent depths between an object and its background.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from eligo.pixels.config import IGNORED, AugmentConfig
from eligo.pixels.data.batch import Batch

_PADDING = {"rgb": 0, "depth": float("nan"), "labels": IGNORED}


@dataclass(frozen=True, eq=False)
class Prepared:
    """One image, not yet normalised."""

    rgb: UInt8[Tensor, "3 height width"]
    depth: Float[Tensor, "1 height width"]
    """As `read_stored_depth` returns it; NaN is unknown."""
    labels: UInt8[Tensor, "height width"]
    word_ids: Int64[Tensor, " max_words"]
    """Rows of its words in a `PhraseTable`; -1 pads."""
    frame: tuple[int, int, int, int] | None = None
    """Top, left, bottom and right of the image inside its padding; None: there is none."""

    def map(self, change: Callable[[Tensor, str], Tensor]) -> "Prepared":
        """Return the image with `change(tensor, field name)` applied to its three maps."""
        maps: dict[str, Any] = {name: change(getattr(self, name), name) for name in _PADDING}
        return replace(self, **maps)


def augment(image: Prepared, config: AugmentConfig) -> Prepared:
    """Mirror, scale and crop one image, with torch's generator."""
    if config.mirror and bool(torch.rand(()) < 0.5):
        image = image.map(lambda x, _: x.flip(-1))
    if config.scales:
        image = scaled(image, config.scales[int(torch.randint(len(config.scales), ()))])
    return image if config.crop is None else _crop(image, config.crop)


def scaled(image: Prepared, scale: float) -> Prepared:
    """Resize by a factor, as `resized` does."""
    height, width = (max(1, round(side * scale)) for side in image.rgb.shape[-2:])
    return resized(image, (height, width))


def resized(image: Prepared, size: tuple[int, int], *, antialias: bool = False) -> Prepared:
    """Resize: colours bilinearly, depth and labels with nearest neighbours."""
    if size == tuple(image.rgb.shape[-2:]):
        return image

    def resize(x: Tensor, name: str) -> Tensor:
        if name == "rgb":
            return F.interpolate(
                x[None], size=size, mode="bilinear", align_corners=False, antialias=antialias
            )[0]
        channels = x.reshape(1, 1, *x.shape[-2:])
        nearest = F.interpolate(channels, size=size, mode="nearest-exact")
        return nearest.view(*x.shape[:-2], *size)

    return image.map(resize)


def _crop(image: Prepared, size: tuple[int, int]) -> Prepared:
    """Take a random crop; padding has no colour, unknown depth and an ignored label."""
    height, width = size
    have = image.rgb.shape[-2:]
    top, left = (
        int(torch.randint(max(0, side - wanted) + 1, ()))
        for side, wanted in zip(have, size, strict=True)
    )
    image = image.map(lambda x, _: x[..., top : top + height, left : left + width])
    rows, columns = image.rgb.shape[-2:]
    if (rows, columns) == size:
        return image
    above, before = (height - rows) // 2, (width - columns) // 2
    pad = (before, width - columns - before, above, height - rows - above)
    padded = image.map(lambda x, name: F.pad(x, pad, value=_PADDING[name]))
    return replace(padded, frame=(above, before, above + rows, before + columns))


def inside(
    frames: Int64[Tensor, "batch 4"], height: int, width: int
) -> Bool[Tensor, "batch 1 height width"]:
    """Which pixels of a batch belong to the images, and not to their padding.

    >>> inside(torch.tensor([[0, 1, 1, 3]]), 2, 3)[0, 0].int().tolist()
    [[0, 1, 1], [0, 0, 0]]
    """
    top, left, bottom, right = frames.view(-1, 4, 1, 1, 1).unbind(1)
    row = torch.arange(height, device=frames.device).view(-1, 1)
    column = torch.arange(width, device=frames.device)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


def augment_batch(batch: Batch, config: AugmentConfig) -> Batch:
    """Mirror, scale and crop every image of a batch, on its device, with torch's generator."""
    batch = mirror_some(batch) if config.mirror else batch
    height, width = batch.labels.shape[1:]
    size = config.crop or (height, width)
    if not config.scales and size == (height, width):
        return batch
    count, device = len(batch.labels), batch.labels.device
    scales = torch.tensor(config.scales or (1.0,), device=device)
    scale = scales[torch.randint(len(scales), (count,), device=device)]
    axes = []
    for have, wanted in ((width, size[1]), (height, size[0])):
        room = scale * have - wanted  # negative: the image is centred in its padding
        shift = torch.where(room > 0, torch.rand(count, device=device) * room, room / 2).round()
        pixel = (torch.arange(wanted, device=device) + 0.5 + shift[:, None]) / scale[:, None]
        axes.append(2 * pixel / have - 1)  # edges of the image are -1 and 1
    x, y = axes
    grid = torch.stack(
        (x[:, None].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])), -1
    )

    within = (grid.abs() <= 1).all(-1)[:, None]

    def sampled(values: Tensor, mode: str) -> Tensor:
        found = F.grid_sample(
            values.float(), grid, mode, padding_mode="border", align_corners=False
        )
        return torch.where(within, found, 0.0)

    labels = sampled(batch.labels[:, None], "nearest").to(torch.uint8)
    depth, mask = batch.depth, batch.depth_mask
    return replace(
        batch,
        rgb=sampled(batch.rgb, "bilinear"),
        labels=labels.masked_fill(~within, IGNORED)[:, 0],
        depth=None if depth is None else sampled(depth, "nearest"),
        depth_mask=None if mask is None else sampled(mask, "nearest") > 0,
    )


def mirror_some(batch: Batch) -> Batch:
    """Mirror half of a batch, on its device, with torch's generator."""
    chosen = torch.rand(batch.rgb.shape[0], device=batch.rgb.device) < 0.5

    def mirrored(x: Tensor) -> Tensor:
        return torch.where(chosen.view(-1, *(1 for _ in x.shape[1:])), x.flip(-1), x)

    depth, mask = (None if x is None else mirrored(x) for x in (batch.depth, batch.depth_mask))
    return replace(
        batch, rgb=mirrored(batch.rgb), labels=mirrored(batch.labels), depth=depth, depth_mask=mask
    )
