"""Augmentation of training images: mirror, scale, crop.

Departure from the original: depth is resized with nearest neighbours rather than bilinearly, which
would invent depths between an object and its background.
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


@dataclass(frozen=True, eq=False)
class Prepared:
    """One image, as network inputs."""

    rgb: Float[Tensor, "3 height width"]
    depth: Float[Tensor, "1 height width"]
    depth_mask: Bool[Tensor, "1 height width"]
    labels: UInt8[Tensor, "height width"]
    word_ids: Int64[Tensor, " max_words"]
    """Rows of its words in a `PhraseTable`; -1 pads."""

    def map(self, change: Callable[[Tensor, str], Tensor]) -> "Prepared":
        """Return the image with `change(tensor, field name)` applied to its four maps."""
        maps: dict[str, Any] = {
            name: change(getattr(self, name), name)
            for name in ("rgb", "depth", "depth_mask", "labels")
        }
        return replace(self, **maps)


def augment(image: Prepared, config: AugmentConfig) -> Prepared:
    """Mirror, scale and crop one image, with torch's generator."""
    if config.mirror and bool(torch.rand(()) < 0.5):
        image = image.map(lambda x, _: x.flip(-1))
    if config.scales:
        image = scaled(image, config.scales[int(torch.randint(len(config.scales), ()))])
    return image if config.crop is None else _crop(image, config.crop)


def scaled(image: Prepared, scale: float) -> Prepared:
    """Resize: colours bilinearly, depth and labels with nearest neighbours."""
    size = [max(1, round(side * scale)) for side in image.rgb.shape[-2:]]

    def resized(x: Tensor, name: str) -> Tensor:
        if name == "rgb":
            return F.interpolate(x[None], size=size, mode="bilinear", align_corners=False)[0]
        channels = x.reshape(1, 1, *x.shape[-2:]).float()
        nearest = F.interpolate(channels, size=size, mode="nearest-exact").to(x.dtype)
        return nearest.view(*x.shape[:-2], *size)

    return image.map(resized)


def _crop(image: Prepared, size: tuple[int, int]) -> Prepared:
    """Take a random crop; padding is 0 (the mean colour), unknown depth and an ignored label."""
    height, width = size
    top, left = (
        int(torch.randint(max(0, have - want) + 1, ()))
        for have, want in zip(image.rgb.shape[-2:], size, strict=True)
    )

    def crop(x: Tensor, name: str) -> Tensor:
        part = x[..., top : top + height, left : left + width]
        below, right = height - part.shape[-2], width - part.shape[-1]
        pad = (right // 2, right - right // 2, below // 2, below - below // 2)
        return F.pad(part, pad, value=IGNORED if name == "labels" else 0)

    return image.map(crop)


def mirror_some(batch: Batch) -> Batch:
    """Mirror half of a batch, on its device, with torch's generator."""
    chosen = torch.rand(batch.rgb.shape[0], device=batch.rgb.device) < 0.5

    def mirrored(x: Tensor) -> Tensor:
        return torch.where(chosen.view(-1, *(1 for _ in x.shape[1:])), x.flip(-1), x)

    depth, mask = (None if x is None else mirrored(x) for x in (batch.depth, batch.depth_mask))
    return replace(
        batch, rgb=mirrored(batch.rgb), labels=mirrored(batch.labels), depth=depth, depth_mask=mask
    )
