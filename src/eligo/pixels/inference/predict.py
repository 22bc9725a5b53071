"""Two picture files and a few words in; classes, and which word guided which pixel, out."""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.images import printable_name
from eligo.io.files import remove_file, write_text, writing
from eligo.pixels.config import InputsConfig, SegmenterConfig
from eligo.pixels.data.inputs import normalise_rgb
from eligo.pixels.data.pictures import (
    MIN_SIZE,
    Photo,
    photo_of,
    read_depth,
    read_photo,
    remark_depth,
)
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pixels.inference.views import Seen, resized
from eligo.pretrained.devices import resolve_device
from eligo.report.pictures import rgb_picture
from eligo.report.pixels_picture import indexed_labels, overlay_picture, word_picture
from eligo.selection import Selection

_OTHER = 2.0  # times the size of the training images, from which on things are another's size
_MOST_SEEN = 2**20  # pixels that the network looks at, unless told otherwise
_log = logging.getLogger("eligo.pixels")


@dataclass(frozen=True, eq=False)
class PixelsPrediction:
    """What a model says about one image."""

    labels: UInt8[Tensor, "height width"]
    """The class of every pixel, from 0."""
    confidence: Float[Tensor, "height width"]
    """How probable the model finds it."""
    classes: tuple[str, ...]
    words: tuple[str, ...]
    tag_maps: Float[Tensor, "words map_height map_width"] | None
    """How much each place looks at each word; together 1. None: no words."""
    selection: Selection | None
    """The words, most looked at first."""
    image: Image.Image
    used_depth: bool

    def summary(self) -> dict[str, Any]:
        """Classes by size with mean confidence, and words by attention.

        `label` is the class's value in label.png.
        """
        shares = torch.bincount(self.labels.flatten().long(), minlength=len(self.classes))
        found = [
            {
                "class": self.classes[number],
                "label": number,
                "share": count / self.labels.numel(),
                "confidence": self.confidence[self.labels == number].mean().item(),
            }
            for number, count in enumerate(shares.tolist())
            if count
        ]
        heard = []
        if self.selection is not None:
            scores = self.selection.scores[0].tolist()
            heard = [
                {"word": self.words[place], "attention": scores[place]}
                for place in self.selection.indices[0].tolist()
            ]
        return {
            "height": self.labels.shape[0],
            "width": self.labels.shape[1],
            "depth": self.used_depth,
            "provenance": "predicted" if self.words else "none",
            "classes": sorted(found, key=lambda row: -row["share"]),
            "words": heard,
        }

    def save(self, out: str | Path) -> dict[str, Any]:
        """Write label.png, overlay.png, tags/NN_name.png and result.json; returns the last."""
        out = Path(out)
        pictures = {
            "label.png": indexed_labels(self.labels, self.classes),
            "overlay.png": overlay_picture(self.image, self.labels, self.classes),
        }
        if self.tag_maps is not None:
            highest = max(float(self.tag_maps.max()), 1e-6)
            for number, (word, heard) in enumerate(zip(self.words, self.tag_maps, strict=True)):
                name = re.sub(r"\W+", "_", word).strip("_")[:40] or "word"
                pictures[f"tags/{number:02d}_{name}.png"] = word_picture(
                    self.image, heard, word, highest=highest
                )
        earlier = _tags_of(out)
        for name, picture in pictures.items():
            with writing(out / name) as temporary:
                picture.save(temporary, "PNG")
        for old in earlier - pictures.keys():  # of an earlier call with other words
            remove_file(out / old)
        files = [printable_name(out / name) for name in (*pictures, "result.json")]
        result = {**self.summary(), "files": files}
        write_text(out / "result.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        return result


def _tags_of(out: Path) -> set[str]:
    """The pictures of words that an earlier call wrote, as its result.json lists them."""
    try:
        files = json.loads((out / "result.json").read_text("utf-8"))["files"]
        return {f"tags/{Path(file).name}" for file in files if Path(file).parent.name == "tags"}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def predict(
    image: str | Path | Image.Image,
    depth: str | Path | None = None,
    *,
    tags: str | Sequence[str] | None = (),
    captions: str | Sequence[str] | None = (),
    model: str | Path | Segmenter | None = None,
    inputs: InputsConfig | None = None,
    size: tuple[int, int] | None = None,
    device: str = "auto",
) -> PixelsPrediction:
    """Segment one image; depth and words are optional. Name all that you see.

    `tags` are a list or one string with commas, `captions` sentences. `model` is a folder (by
    default the shipped one) or a loaded `Segmenter`; `inputs` says how the files are stored, where
    that is not as in the model's training; `size` is the height and width to look at the image in.

    >>> from eligo.pixels import predict  # doctest: +SKIP
    >>> predict("rgb.png", "depth.png", tags="wall, floor, ball").save("out")  # doctest: +SKIP
    """
    segmenter = model
    if not isinstance(segmenter, Segmenter):
        segmenter = Segmenter.from_pretrained(segmenter, device=resolve_device(device))
    inputs = inputs or segmenter.config.inputs
    if isinstance(image, Image.Image):
        photo = photo_of(image, Path("image"))
    else:
        photo = read_photo(Path(image))
    read = None
    if depth is not None:
        read = read_depth(Path(depth), inputs, photo)
        remark_depth(Path(depth), read, inputs)
    if size is None:
        size = _seen_size(photo, segmenter.config.image_size)
    return segment(
        segmenter, photo.pixels, read, tags=tags, captions=captions, inputs=inputs, size=size
    )


def segment(
    segmenter: Segmenter,
    pixels: UInt8[Tensor, "3 height width"],
    depth: tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]] | None = None,
    *,
    tags: str | Sequence[str] | None = (),
    captions: str | Sequence[str] | None = (),
    inputs: InputsConfig | None = None,
    size: tuple[int, int] | None = None,
) -> PixelsPrediction:
    """The same for what is in memory; `depth` is what `decode_depth` makes of it."""
    names, sentences = _listed(tags, ","), _listed(captions)
    if names and sentences:
        raise InputError("got tags and captions, expected one kind of words")
    inputs = inputs or segmenter.config.inputs
    if depth is not None and inputs.depth == "none":
        raise InputError("depth: this model was trained without depth (inputs.depth none)")
    _remark_words(segmenter.config, names, sentences)
    text = segmenter.text(names or sentences, sentences=bool(sentences))
    where = segmenter.device
    rgb = normalise_rgb(pixels, inputs.channel_order)[None].to(where)
    z, mask = (None, None) if depth is None else (part[None].to(where) for part in depth)
    seen = Seen(rgb, z, mask, text)
    if size is not None:
        if min(size) < MIN_SIZE:
            raise InputError(f"size: got {size[0]} x {size[1]}, expected at least 32 x 32")
        seen = resized(seen, size, antialias=True)
    with torch.no_grad():
        found = segmenter.model(*seen)
    confidence, labels = _likeliest(found.logits.softmax(1), rgb.shape[-2:])
    classes = segmenter.config.classes or tuple(map(str, range(segmenter.config.num_classes)))
    return PixelsPrediction(
        labels=labels.to(torch.uint8).cpu(),
        confidence=confidence.cpu(),
        classes=classes,
        words=text.words[0] if text is not None and text.words else (),
        tag_maps=None if found.tag_maps is None else found.tag_maps[0].cpu(),
        selection=None if found.selection is None else found.selection.to("cpu"),
        image=rgb_picture(pixels),
        used_depth=depth is not None,
    )


def _listed(words: str | Sequence[str] | None, between: str | None = None) -> list[str]:
    """Words however they were given, each once, without empty ones."""
    if isinstance(words, str):
        words = words.split(between) if between else [words]
    return list(dict.fromkeys(word.strip() for word in words or () if word.strip()))


def _remark_words(config: SegmenterConfig, names: list[str], sentences: list[str]) -> None:
    """Say if the words are of another kind, or more, than in the model's training."""
    source, flag = config.text.source, "tags" if names else "captions"
    if not config.guided or not (names or sentences):
        return
    if source == "labels":
        _log.warning(
            "%s: this model was trained with all its class names as words of every image "
            "(text.source labels); without %s it gets them", flag, flag,
        )  # fmt: skip
        return
    if flag not in config.text.kinds:
        _log.warning("%s: this model was trained with %s only (text.source)", flag, source)
    most = config.text.max_tags if names else config.text.max_captions
    if (count := len(names or sentences)) > most:
        _log.warning(
            "%s: got %d, but this model was trained with at most %d of an image (text.max_%s)",
            flag, count, most, flag,
        )  # fmt: skip


def _likeliest(
    chances: Float[Tensor, "1 classes rows columns"], size: Sequence[int]
) -> tuple[Float[Tensor, "height width"], Int64[Tensor, "height width"]]:
    """Confidence and class of every pixel, in the image's own size; class by class, as all of them
    together may be gigabytes."""
    if tuple(chances.shape[-2:]) == tuple(size):
        highest, labels = chances[0].max(0)
        return highest, labels
    best = labels = None
    for number in range(chances.shape[1]):
        one = chances[:, number : number + 1]
        grown = F.interpolate(one, size=tuple(size), mode="bilinear", align_corners=False)[0, 0]
        if best is None or labels is None:
            best, labels = grown, torch.zeros_like(grown, dtype=torch.int64)
            continue
        labels[grown > best] = number
        best = torch.maximum(best, grown)
    assert best is not None
    assert labels is not None
    return best, labels


def _seen_size(photo: Photo, trained: tuple[int, int] | None) -> tuple[int, int] | None:
    """A smaller size to look at a very large image in; None: its own.

    Say so, and say if things must look much larger or smaller than in the model's training.
    """
    height, width = photo.pixels.shape[-2:]
    size = None
    if height * width > _MOST_SEEN:
        factor = (_MOST_SEEN / (height * width)) ** 0.5
        size = (max(MIN_SIZE, int(height * factor)), max(MIN_SIZE, int(width * factor)))
    seen = size or (height, width)
    about = f"{photo.path}: got {height} x {width} pixels"
    if size is not None:
        about += f", looked at in {size[0]} x {size[1]} to save memory"
    if trained is not None:
        times = max(seen[0] / trained[0], seen[1] / trained[1])
        if not 1 / _OTHER < times < _OTHER:
            _log.warning(
                "%s, but this model was trained on %d x %d and knows things by their size; "
                "--size %d %d looks at the image in that size",
                about, *trained, *trained,
            )  # fmt: skip
            return size
    if size is not None:
        _log.warning("%s; --size HEIGHT WIDTH chooses another size", about)
    return size
