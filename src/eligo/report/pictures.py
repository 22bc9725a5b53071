"""Pillow images of tensors: colour images, depth, label maps, highlights, contact sheets.

Every function returns a Pillow image of the size of its tensor.
"""

from collections.abc import Sequence
from functools import cache
from math import cos, radians, sin

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from eligo.errors import InputError

Colour = tuple[int, int, int]

# Near to far: the anchors of matplotlib's viridis, reversed, so that near is bright.
_DEPTH_ANCHORS = (
    (253, 231, 37),
    (170, 220, 50),
    (92, 200, 99),
    (39, 173, 129),
    (33, 145, 140),
    (44, 113, 142),
    (59, 82, 139),
    (71, 44, 122),
    (68, 1, 84),
)
_NO_DEPTH: Colour = (0, 0, 0)
_GOLDEN_ANGLE = 180 * (3 - 5**0.5)
_LIGHTNESS = (0.64, 0.8, 0.52, 0.72, 0.58)  # five: hues nearly repeat after 8, 13, 21 and 34
_IGNORED: Colour = (0, 0, 0)


def rgb_picture(rgb: UInt8[Tensor, "3 height width"]) -> Image.Image:
    """Return an image tensor as a picture."""
    return Image.fromarray(rgb.permute(1, 2, 0).contiguous().cpu().numpy())


def depth_picture(
    depth: Float[Tensor, "height width"],
    mask: Bool[Tensor, "height width"] | None = None,
    *,
    near: float | None = None,
    far: float | None = None,
) -> Image.Image:
    """Return a depth map from bright (near) to dark (far), black where there is none.

    The ends of the scale are the nearest and farthest valid depth unless they are given (to
    compare several pictures).
    """
    valid = depth.isfinite() if mask is None else mask & depth.isfinite()
    if not valid.any():
        return Image.new("RGB", (depth.shape[1], depth.shape[0]), _NO_DEPTH)
    near = float(depth[valid].min()) if near is None else near
    far = float(depth[valid].max()) if far is None else far
    share = ((depth.float() - near) / max(far - near, 1e-6)).nan_to_num().clamp(0, 1)
    anchors = torch.tensor(_DEPTH_ANCHORS, dtype=torch.float32)
    place = share.cpu() * (len(anchors) - 1)
    low = place.floor().long().clamp(max=len(anchors) - 2)
    weight = (place - low)[..., None]
    colours = anchors[low] * (1 - weight) + anchors[low + 1] * weight  # (height, width, 3)
    colours[~valid.cpu()] = torch.tensor(_NO_DEPTH, dtype=torch.float32)
    return Image.fromarray(colours.round().to(torch.uint8).numpy())


def label_palette(count: int, first: Sequence[Colour] = ()) -> tuple[Colour, ...]:
    """Return `count` distinct colours, beginning with `first`.

    Hues are steps of the golden angle in OKLCH, so that neighbours in the list differ in colour.
    """
    others = (
        _oklch(_LIGHTNESS[index % len(_LIGHTNESS)], 0.145, 30 + _GOLDEN_ANGLE * index)
        for index in range(max(0, count - len(first)))
    )
    return (*first, *others)[:count]


def label_picture(
    labels: Integer[Tensor, "height width"],
    palette: Sequence[Colour],
    *,
    ignore: int = 255,
) -> Image.Image:
    """Return a label map in the colours of a palette; pixels labelled `ignore` are black."""
    flat = labels.long().cpu()
    real = flat[flat != ignore]
    if real.numel() and (real.min() < 0 or real.max() >= len(palette)):
        raise InputError(
            f"got labels {int(real.min())}..{int(real.max())} for a palette of {len(palette)} "
            "colours; make one with label_palette(number of classes)"
        )
    table = torch.tensor([*palette, _IGNORED], dtype=torch.uint8)
    return Image.fromarray(table[torch.where(flat == ignore, len(palette), flat)].numpy())


def highlight(image: Image.Image, mask: Bool[Tensor, "height width"]) -> Image.Image:
    """Return the image, grey and lighter outside the mask, with a line around it."""
    inside = mask.cpu()
    pixels = np.asarray(image.convert("RGB")).astype(np.float32)
    grey = pixels.mean(-1, keepdims=True) * 0.35 + 255 * 0.52
    grown = torch.nn.functional.max_pool2d(inside[None, None].float(), 5, 1, 2)[0, 0] > 0
    rim = (grown & ~inside).numpy()
    shown = np.where(inside.numpy()[..., None], pixels, grey)
    shown[rim] = (20, 20, 28)
    return Image.fromarray(shown.round().astype(np.uint8))


def contact_sheet(
    rows: Sequence[Sequence[Image.Image]],
    *,
    columns: Sequence[str] = (),
    captions: Sequence[str] = (),
    title: str = "",
    cell: int = 224,
) -> Image.Image:
    """Return a grid of thumbnails, with a title, column heads and row captions."""
    if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
        raise InputError(f"a contact sheet needs rows of equal length, got {list(map(len, rows))}")
    if columns and len(columns) != len(rows[0]):
        raise InputError(f"got {len(columns)} column heads for {len(rows[0])} columns")
    if captions and len(captions) != len(rows):
        raise InputError(f"got {len(captions)} captions for {len(rows)} rows")
    pad, line = 14, 20
    width = pad + len(rows[0]) * (cell + pad)
    wrapped = [_wrap(text, width - 2 * pad, 15) for text in captions] or [[] for _ in rows]
    heights = [max(round(cell * image.height / image.width) for image in row) for row in rows]
    top = pad + (36 if title else 0) + (line + 6 if columns else 0)
    blocks = [
        height + (8 + line * len(lines) if lines else 0) + pad
        for height, lines in zip(heights, wrapped, strict=True)
    ]
    sheet = Image.new("RGB", (width, top + sum(blocks)), (250, 250, 252))
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((pad, pad - 2), title, fill=(24, 24, 32), font=_font(22))
    for index, head in enumerate(columns):
        at = (pad + index * (cell + pad), top - line - 6)
        draw.text(at, head, fill=(96, 96, 110), font=_font(15))
    for row, height, lines, block in zip(rows, heights, wrapped, blocks, strict=True):
        for index, image in enumerate(row):
            size = (cell, round(cell * image.height / image.width))
            thumbnail = image.convert("RGB").resize(size, _filter(image, size))
            sheet.paste(thumbnail, (pad + index * (cell + pad), top))
        for number, text in enumerate(lines):
            at = (pad, top + height + 6 + number * line)
            draw.text(at, text, fill=(24, 24, 32), font=_font(15))
        top += block
    return sheet


def _filter(image: Image.Image, size: tuple[int, int]) -> Image.Resampling:
    """Scale up with nearest neighbours, down with smoothing."""
    grows = image.width <= size[0]
    return Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _wrap(text: str, width: int, size: int) -> list[str]:
    """Wrap text to the width, keeping its line breaks."""
    font, lines = _font(size), []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and font.getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines


def _oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """Convert OKLCH to sRGB (Ottosson, "A perceptual color space for image processing", 2020)."""
    angle = radians(hue % 360)
    a, b = chroma * cos(angle), chroma * sin(angle)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    red, green, blue = (_gamma(value) for value in linear)
    return red, green, blue


def _gamma(linear: float) -> int:
    linear = min(max(linear, 0.0), 1.0)
    value = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * value)
