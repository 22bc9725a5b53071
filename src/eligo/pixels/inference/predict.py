"""Segment one image: a class for every pixel, and which word guided which pixel."""

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.images import printable_name
from eligo.io.files import remove_file, write_text, writing
from eligo.pixels.config import MIN_SIZE, InputsConfig, SegmenterConfig
from eligo.pixels.data.pictures import (
    DepthMap,
    ImageLike,
    Photo,
    check_depth_range,
    read_depth,
    read_photo,
)
from eligo.pixels.inference.as_trained import as_trained
from eligo.pixels.inference.segmenter import SHIPPED, Segmenter
from eligo.pixels.inference.words import Words, listed
from eligo.pretrained.devices import resolve_device
from eligo.report.pictures import rgb_picture
from eligo.report.pixels_picture import indexed_labels, overlay_picture, word_picture
from eligo.selection import Selection

_SIZE_RATIO = 2.0  # to the training images; a larger one is logged
_MAX_PIXELS = 2**20  # of the network's input, unless a size is given
_log = logging.getLogger("eligo.pixels")

RESULT = "result.json"
"""The file in which `PixelsPrediction.save` writes the summary."""


@dataclass(frozen=True, eq=False)
class PixelsPrediction:
    """The segmentation of one image."""

    labels: UInt8[Tensor, "height width"]
    """The class of every pixel, from 0."""
    confidence: Float[Tensor, "height width"]
    """The probability of that class."""
    classes: tuple[str, ...]
    words: tuple[str, ...]
    tag_maps: Float[Tensor, "words map_height map_width"] | None
    """Attention of each place to each word, which sums to 1 over the words. None: no words."""
    selection: Selection | None
    """The words, by attention."""
    image: Image.Image
    used_depth: bool
    trained: dict[str, Any] = field(default_factory=dict)
    """What the model was trained on: `as_trained`."""

    def summary(self) -> dict[str, Any]:
        """Return classes by area with mean confidence, and words by attention.

        `label` is the value of the class in label.png.
        """
        shares = torch.bincount(self.labels.flatten().long(), minlength=len(self.classes))
        rows = [
            {
                "class": self.classes[number],
                "label": number,
                "share": count / self.labels.numel(),
                "confidence": self.confidence[self.labels == number].mean().item(),
            }
            for number, count in enumerate(shares.tolist())
            if count
        ]
        words = []
        if self.selection is not None:
            scores = self.selection.scores[0].tolist()
            words = [
                {"word": self.words[place], "attention": scores[place]}
                for place in self.selection.indices[0].tolist()
            ]
        return {
            "height": self.labels.shape[0],
            "width": self.labels.shape[1],
            "depth": self.used_depth,
            "provenance": "predicted" if self.words else "none",
            "trained": self.trained,
            "classes": sorted(rows, key=lambda row: -row["share"]),
            "words": words,
        }

    def save(self, folder: str | Path) -> Path:
        """Write pictures, result.json and a record for `eligo explore`; return the folder.

        The pictures are label.png, confidence.png (0 to 255), overlay.png and tags/NN_name.png.
        """
        from eligo.explorer.folder import save_prediction
        from eligo.pixels.inference.record import record

        out = Path(folder)
        pictures = {
            "label.png": indexed_labels(self.labels, self.classes),
            "confidence.png": _grey(self.confidence),
            "overlay.png": overlay_picture(self.image, self.labels, self.classes),
        }
        if self.tag_maps is not None:
            highest = max(float(self.tag_maps.max()), 1e-6)
            for number, (word, tag_map) in enumerate(zip(self.words, self.tag_maps, strict=True)):
                name = re.sub(r"\W+", "_", word).strip("_")[:40] or "word"
                shown = word_picture(self.image, tag_map, word, highest=highest)
                pictures[f"tags/{number:02d}_{name}.png"] = shown
        earlier = _earlier_tags(out)
        for name, picture in pictures.items():
            with writing(out / name) as temporary:
                picture.save(temporary, "PNG")
        for old in earlier - pictures.keys():  # of an earlier call with other words
            remove_file(out / old)
        files = [printable_name(out / name) for name in (*pictures, RESULT)]
        result = {**self.summary(), "files": files}
        write_text(out / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        save_prediction(record(self), out)
        return out


def _grey(values: Float[Tensor, "height width"]) -> Image.Image:
    """A grey picture of values from 0 to 1."""
    return Image.fromarray((values * 255).round().to(torch.uint8).numpy())


def _earlier_tags(out: Path) -> set[str]:
    """The tag pictures that an earlier call wrote, as listed in its result.json."""
    try:
        files = json.loads((out / RESULT).read_text("utf-8"))["files"]
        return {f"tags/{Path(file).name}" for file in files if Path(file).parent.name == "tags"}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def predict(
    image: ImageLike,
    depth: ImageLike | None = None,
    tags: Words = (),
    *,
    model: str | Path | Segmenter = SHIPPED,
    captions: Words = (),
    inputs: InputsConfig | None = None,
    size: tuple[int, int] | None = None,
    device: str = "auto",
) -> PixelsPrediction:
    """Segment one image; depth and words are optional.

    Args:
        image: A path, a PIL image, a NumPy array or a tensor.
        depth: The same, one value per pixel of the image: an array or a tensor has the shape
            (height, width). `inputs` gives the unit; by default it is that of the training
            (`InputsConfig(depth="metric", depth_scale=1)` for metres).
        tags: Names of everything visible, as a list or as one string with commas.
        model: A name, a folder or a loaded `Segmenter`; by default the shipped model.
        captions: Sentences instead of tags, for a model that was trained with captions.
        inputs: How image and depth are stored, if not as in the training of the model.
        size: Height and width to scale the image to for the network; by default its own.
        device: Device for a model that is not loaded yet: auto, cpu or cuda.

    >>> from eligo.pixels import predict  # doctest: +SKIP
    >>> predict("rgb.png", "depth.png", "wall, floor, ball").save("out")  # doctest: +SKIP
    """
    segmenter = model
    if not isinstance(segmenter, Segmenter):
        segmenter = Segmenter.from_pretrained(segmenter, device=resolve_device(device))
    inputs = inputs or segmenter.config.inputs
    photo = read_photo(image)
    depth_map = None
    if depth is not None:
        depth_map = read_depth(depth, inputs, photo)
        name = depth if isinstance(depth, str | Path) else "depth"
        check_depth_range(depth_map, name, inputs)
    if size is None:
        size = inputs.size or _input_size(photo, segmenter.config.image_size)
    return segment(
        segmenter, photo.pixels, depth_map, tags=tags, captions=captions, inputs=inputs, size=size
    )


def segment(
    segmenter: Segmenter,
    pixels: UInt8[Tensor, "3 height width"],
    depth: DepthMap | None = None,
    *,
    tags: Words = (),
    captions: Words = (),
    inputs: InputsConfig | None = None,
    size: tuple[int, int] | None = None,
) -> PixelsPrediction:
    """Segment decoded pixels; `depth` comes from `decode_depth`."""
    names, sentences = listed(tags, ","), listed(captions)
    if names and sentences:
        raise InputError("got tags and captions, expected one kind of words")
    inputs = inputs or segmenter.config.inputs
    if depth is not None and inputs.depth == "none":
        raise InputError("depth: this model was trained without depth (inputs.depth none)")
    _check_words(segmenter.config, names, sentences)
    text = segmenter.text(names or sentences, sentences=bool(sentences))
    if size is not None and min(size) < MIN_SIZE:
        raise InputError(f"size: got {size[0]} x {size[1]}, expected at least 32 x 32")
    device = segmenter.device
    z, mask = (None, None) if depth is None else (part[None].to(device) for part in depth)
    batch = segmenter.runner(pixels[None].to(device), z, mask, text, inputs=inputs, size=size)
    found = batch.to("cpu")
    return PixelsPrediction(
        labels=found.labels[0],
        confidence=found.confidence[0],
        classes=segmenter.config.classes or tuple(map(str, range(segmenter.config.num_classes))),
        words=found.words[0],
        tag_maps=None if found.tag_maps is None else found.tag_maps[0],
        selection=found.selection(),
        image=rgb_picture(pixels),
        used_depth=depth is not None,
        trained=as_trained(segmenter.config),
    )


def _check_words(config: SegmenterConfig, names: list[str], sentences: list[str]) -> None:
    """Warn about words of another kind, or more of them, than in training."""
    source, flag = config.text.source, "tags" if names else "captions"
    if not config.guided or not (names or sentences):
        return
    if source == "labels":
        _log.warning(
            "%s: this model was trained with all its class names as words of every image "
            "(text.source labels); without %s it gets these", flag, flag,
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


def _input_size(photo: Photo, trained: tuple[int, int] | None) -> tuple[int, int] | None:
    """The size to scale a very large image to; None: keep its size.

    Logs the scaling, and a size that differs much from that of the training images.
    """
    height, width = photo.pixels.shape[-2:]
    size = None
    message = f"{photo.path}: got {height} x {width} pixels"
    if height * width > _MAX_PIXELS:
        factor = (_MAX_PIXELS / (height * width)) ** 0.5
        size = (max(MIN_SIZE, int(height * factor)), max(MIN_SIZE, int(width * factor)))
        message += f", scaled to {size[0]} x {size[1]} to save memory"
    used = size or (height, width)
    ratio = 1.0 if trained is None else max(used[0] / trained[0], used[1] / trained[1])
    if trained is not None and not 1 / _SIZE_RATIO < ratio < _SIZE_RATIO:
        _log.warning(
            "%s, but this model was trained on %d x %d and depends on the size of objects; --size "
            "%d %d scales the image to that", message, *trained, *trained,
        )  # fmt: skip
    elif size is not None:
        _log.warning("%s; --size HEIGHT WIDTH chooses another size", message)
    return size
