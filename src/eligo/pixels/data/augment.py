"""Training images varied: mirrored, scaled, cut to one size. Section 7.

Departure from the original: depth is resized by taking the nearest value, not by mixing, which
would invent depths between an object and what is behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from eligo.pixels.config import AugmentConfig
from eligo.pixels.data.batch import Batch
from eligo.pixels.training.losses import IGNORED


@dataclass(frozen=True, eq=False)
class Prepared:
    """One image as the network sees it."""

    rgb: Float[Tensor, "3 height width"]
    depth: Float[Tensor, "1 height width"]
    depth_mask: Bool[Tensor, "1 height width"]
    labels: UInt8[Tensor, "height width"]
    numbers: Int64[Tensor, " places"]
    """Of its words, in a `PhraseTable`."""


def augment(image: Prepared, config: AugmentConfig) -> Prepared:
    """Mirror, scale and cut one image, by torch's generator."""
    if config.mirror and bool(torch.rand(()) < 0.5):
        image = _each(image, lambda x: x.flip(-1), lambda x: x.flip(-1))
    if config.scales:
        image = scaled(image, config.scales[int(torch.randint(len(config.scales), ()))])
    return image if config.crop is None else _cut(image, config.crop)


def scaled(image: Prepared, scale: float) -> Prepared:
    """The image in another size: colours mixed, depth and labels taken."""
    size = [max(1, round(side * scale)) for side in image.rgb.shape[-2:]]

    def mixed(x: Tensor) -> Tensor:
        return F.interpolate(x[None], size=size, mode="bilinear", align_corners=False)[0]

    def taken(x: Tensor) -> Tensor:
        flat = x[None] if x.ndim == 3 else x[None, None]
        found = F.interpolate(flat.float(), size=size, mode="nearest-exact").to(x.dtype)
        return found[0] if x.ndim == 3 else found[0, 0]

    return _each(image, mixed, taken)


def _cut(image: Prepared, size: tuple[int, int]) -> Prepared:
    """A random piece; what it lacks is padded with 0 (the mean colour), unknown depth, 255."""
    height, width = size
    rows, columns = (
        int(torch.randint(max(0, have - want) + 1, ()))
        for have, want in zip(image.rgb.shape[-2:], size, strict=True)
    )

    def cut(x: Tensor, fill: int = 0) -> Tensor:
        piece = x[..., rows : rows + height, columns : columns + width]
        below, right = height - piece.shape[-2], width - piece.shape[-1]
        # The piece in the middle of what is missing.
        pad = (right // 2, right - right // 2, below // 2, below - below // 2)
        return F.pad(piece, pad, value=fill)

    return replace(
        image,
        rgb=cut(image.rgb),
        depth=cut(image.depth),
        depth_mask=cut(image.depth_mask),
        labels=cut(image.labels, IGNORED),
    )


def _each(
    image: Prepared, mix: Callable[[Tensor], Tensor], take: Callable[[Tensor], Tensor]
) -> Prepared:
    return replace(
        image,
        rgb=mix(image.rgb),
        depth=take(image.depth),
        depth_mask=take(image.depth_mask),
        labels=take(image.labels),
    )


def mirror_some(batch: Batch) -> Batch:
    """Mirror half of a batch, on its device, by torch's generator."""
    chosen = torch.rand(batch.rgb.shape[0], device=batch.rgb.device) < 0.5

    def mirrored(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        rows = chosen.view(-1, *(1 for _ in x.shape[1:]))
        return torch.where(rows, x.flip(-1), x)

    rgb, labels = mirrored(batch.rgb), mirrored(batch.labels)
    assert rgb is not None
    assert labels is not None
    return replace(
        batch,
        rgb=rgb,
        labels=labels,
        depth=mirrored(batch.depth),
        depth_mask=mirrored(batch.depth_mask),
    )
