"""Picture of the patches that a text keeps, and of the match of each word.

On top: the image, the kept patches and their scores. Below, one small picture per word: in colour
the patches of its best token, with their cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw
from torch import Tensor

from eligo.errors import InputError
from eligo.report.pictures import _font, contact_sheet, depth_picture
from eligo.report.tokens_picture import kept_picture, rim

_PANEL, _WORD, _IN_ROW = 336, 161, 6  # three panels are as wide as six words
_SHARE = 0.2  # of a token's largest weight; patches above are outlined
_INK, _PALE, _GREY = (24, 24, 32), (250, 250, 252), (96, 96, 110)


@dataclass(frozen=True)
class WordMatch:
    """A word, its best token, and the weights of patches in that token."""

    word: str
    token: str
    cosine: float
    weights: Float[Tensor, "rows columns"]
    """Weights of any scale; all zero for the [CLS] token."""


def match_picture(
    image: Image.Image,
    kept: Bool[Tensor, "rows columns"],
    scores: Float[Tensor, "rows columns"],
    words: Sequence[WordMatch],
    *,
    title: str = "",
) -> Image.Image:
    """Return the whole picture."""
    if not words:
        raise InputError("words: got none, expected at least one")
    whole = kept_picture(image, kept.new_ones(kept.shape))
    heads = (
        "image",
        f"{int(kept.sum())} of {kept.numel()} patches kept",
        "patch scores, bright is high",
    )
    panels = [whole, kept_picture(image, kept), _scores_picture(image, scores)]
    top = contact_sheet([panels], columns=heads, title=title, cell=_PANEL)
    small = [_word_picture(image, match) for match in words]
    blank = Image.new("RGB", small[0].size, _PALE)
    small += [blank] * (-len(small) % _IN_ROW)
    rows = [small[start : start + _IN_ROW] for start in range(0, len(small), _IN_ROW)]
    below = contact_sheet(rows, title="patches of each word's best token", cell=_WORD)
    sheet = Image.new("RGB", (top.width, top.height + below.height), _PALE)
    sheet.paste(top, (0, 0))
    sheet.paste(below, (0, top.height))
    return sheet


def _scores_picture(image: Image.Image, scores: Tensor) -> Image.Image:
    """Return the scores, bright where high, over the grey image."""
    grid = depth_picture(-scores.float()).resize((_PANEL, _height(image, _PANEL)), 0)
    return Image.blend(image.convert("L").convert("RGB").resize(grid.size), grid, 0.65)


def _word_picture(image: Image.Image, match: WordMatch) -> Image.Image:
    """Return the patches of a token in colour; below, word, token and cosine."""
    size = (_WORD, _height(image, _WORD))
    pixels = np.asarray(image.convert("RGB").resize(size), dtype=np.float32)
    weights = match.weights.float().cpu().clamp_min(0)
    if not bool(weights.any()):  # a token of the whole image
        weights = torch.ones_like(weights)
    share = (weights / weights.max().clamp_min(1e-12)).numpy()
    grown = np.asarray(Image.fromarray(share).resize(size, 0))[..., None]
    grey = pixels.mean(-1, keepdims=True) * 0.3 + 255 * 0.66
    shown = (grey + grown * (pixels - grey)).round().astype(np.uint8)
    shown[rim(grown[..., 0] < _SHARE)] = _INK  # grey areas do not stand out by colour
    cell = Image.new("RGB", (size[0], size[1] + 40), _PALE)
    cell.paste(Image.fromarray(shown), (0, 0))
    draw = ImageDraw.Draw(cell)
    draw.text((0, size[1] + 2), match.word, fill=_INK, font=_font(16))
    draw.text((0, size[1] + 21), f"{match.token}  {match.cosine:+.2f}", fill=_GREY, font=_font(13))
    return cell


def _height(image: Image.Image, width: int) -> int:
    return max(1, round(width * image.height / image.width))
