"""Pictures of a segmentation: coloured classes with names, and attention to each word."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Integer
from PIL import Image, ImageDraw
from torch import Tensor

from eligo.errors import InputError
from eligo.report.pictures import Colour, _font, _wrap, label_palette, label_picture

_SIDE = 640  # minimum of the longer side, so that names can be read
_MOST_SIDE = 2048  # maximum of the longer side
_LINE = 24
_INK, _PALE = (24, 24, 32), (250, 250, 252)
# From nothing to all: the anchors of matplotlib's magma.
_HEAT = (
    (0, 0, 4), (40, 11, 84), (101, 21, 110), (159, 42, 99), (212, 72, 66), (245, 125, 21),
    (250, 193, 39), (252, 253, 191),
)  # fmt: skip


def class_palette(classes: Sequence[str]) -> tuple[Colour, ...]:
    """Return colours of classes; wall and floor are grey if they come first."""
    rooms = tuple(classes[:2]) == ("wall", "floor")
    return label_palette(len(classes), ((188, 188, 196), (134, 126, 118)) if rooms else ())


def indexed_labels(labels: Integer[Tensor, "height width"], classes: Sequence[str]) -> Image.Image:
    """Return a palette image whose pixel values are the classes, from 0."""
    picture = Image.fromarray(labels.cpu().to(torch.uint8).numpy()).convert("P")
    flat = [value for colour in class_palette(classes) for value in colour]
    picture.putpalette(flat + [0] * (768 - len(flat)))
    return picture


def overlay_picture(
    image: Image.Image, labels: Integer[Tensor, "height width"], classes: Sequence[str]
) -> Image.Image:
    """Return `labels_over` with a legend of the classes, the largest first."""
    picture = labels_over(image, labels, classes)
    return _with_legend(picture, labels_legend(labels, classes), "")


def labels_over(
    image: Image.Image, labels: Integer[Tensor, "height width"], classes: Sequence[str]
) -> Image.Image:
    """Return the classes in colour over a grey image, with lines between them."""
    palette = class_palette(classes)
    size = _shown_size(image)
    grown = np.asarray(_grown(labels, size))
    colours = np.asarray(label_picture(torch.from_numpy(grown.copy()), palette), dtype=np.float32)
    grey = np.asarray(image.convert("L").resize(size), dtype=np.float32)[..., None]
    shown = 0.45 * colours + 0.55 * grey
    shown[_edges(grown)] = _INK
    return Image.fromarray(shown.round().astype(np.uint8))


def labels_legend(
    labels: Integer[Tensor, "height width"], classes: Sequence[str]
) -> list[tuple[Colour, str]]:
    """Return colour, name and share of every present class, the largest first."""
    palette = class_palette(classes)
    counts = torch.bincount(labels.cpu().flatten().long(), minlength=len(classes)).tolist()
    present = sorted((-count, number) for number, count in enumerate(counts) if count)
    total = max(1, sum(counts))
    return [
        (palette[number], f"{classes[number]}  {_percent(-negative / total)}")
        for negative, number in present
    ]


def word_picture(
    image: Image.Image,
    attention: Float[Tensor, "map_height map_width"],
    word: str,
    *,
    highest: float,
) -> Image.Image:
    """Return the attention to a word: dark for 0, bright for `highest`."""
    if highest <= 0:
        raise InputError(f"highest: got {highest}, expected a number above 0")
    size = _shown_size(image)
    share = (attention.float().cpu() / highest).clamp(0, 1).numpy()
    smooth = np.asarray(Image.fromarray(share).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)
    grey = np.asarray(image.convert("L").resize(size), dtype=np.float32)[..., None]
    picture = Image.fromarray((0.72 * _heat(smooth) + 0.28 * grey).round().astype(np.uint8))
    mean, most = float(attention.mean()), float(attention.max())
    title = f"{word}: attention {mean:.2f} on average, {most:.2f} at most"
    return _with_scale(_with_legend(picture, [], title), highest)


def _heat(share: np.ndarray) -> np.ndarray:
    """Return the colours of shares from 0 to 1: (..., 3)."""
    anchors = np.array(_HEAT, dtype=np.float32)
    place = share * (len(anchors) - 1)
    low = np.floor(place).astype(int).clip(max=len(anchors) - 2)
    part = (place - low)[..., None]
    return anchors[low] * (1 - part) + anchors[low + 1] * part


def _with_scale(picture: Image.Image, highest: float) -> Image.Image:
    """Return the picture with a colour bar below, from 0 to `highest`."""
    font, pad, bar = _font(16), 10, 160
    sheet = Image.new("RGB", (picture.width, picture.height + _LINE + pad), _PALE)
    sheet.paste(picture, (0, 0))
    y, left = picture.height + pad // 2, 2 * pad + round(font.getlength("0"))
    colours = np.broadcast_to(_heat(np.linspace(0, 1, bar)), (16, bar, 3))
    sheet.paste(Image.fromarray(colours.round().astype(np.uint8)), (left, y + 2))
    draw = ImageDraw.Draw(sheet)
    draw.text((pad, y), "0", fill=_INK, font=font)
    label = f"{highest:.2f} of a pixel's attention"
    draw.text((left + bar + pad, y), label, fill=_INK, font=font)
    return sheet


def _with_legend(picture: Image.Image, rows: list[tuple[Colour, str]], title: str) -> Image.Image:
    """Return the picture with a title above and a legend below, in as many columns as fit."""
    font, pad = _font(16), 10
    heads = _wrap(title, picture.width - 2 * pad, 16)  # a word may be a sentence
    widest = max((font.getlength(text) for _, text in rows), default=0) + 44
    columns = max(1, int((picture.width - pad) // max(1, widest)))
    lines = -(-len(rows) // columns)
    top = len(heads) * _LINE + pad if heads else 0
    below = lines * _LINE + 2 * pad if rows else 0
    sheet = Image.new("RGB", (picture.width, picture.height + top + below), _PALE)
    draw = ImageDraw.Draw(sheet)
    for number, head in enumerate(heads):
        draw.text((pad, pad // 2 + 2 + number * _LINE), head, fill=_INK, font=font)
    sheet.paste(picture, (0, top))
    for number, (colour, text) in enumerate(rows):
        x = pad + (number % columns) * widest
        y = top + picture.height + pad + (number // columns) * _LINE
        draw.rectangle((x, y + 2, x + 16, y + 18), fill=colour, outline=_INK)
        draw.text((x + 24, y), text, fill=_INK, font=font)
    return sheet


def _shown_size(image: Image.Image) -> tuple[int, int]:
    longest = max(image.size)
    if longest > _MOST_SIDE:
        width, height = (max(1, side * _MOST_SIDE // longest) for side in image.size)
        return width, height
    scale = max(1, -(-_SIDE // max(image.size)))
    return image.width * scale, image.height * scale


def _grown(labels: Tensor, size: tuple[int, int]) -> Image.Image:
    picture = Image.fromarray(labels.cpu().to(torch.uint8).numpy())
    return picture.resize(size, Image.Resampling.NEAREST)


def _edges(labels: np.ndarray) -> np.ndarray:
    """Return the pixels whose right or lower neighbour is of another class."""
    edges = np.zeros(labels.shape, dtype=bool)
    edges[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edges[:-1] |= labels[:-1] != labels[1:]
    return edges


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "< 0.1 %"
