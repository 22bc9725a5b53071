"""Two picture files and a few words in; classes, and which word guided which pixel, out."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from eligo.devices import resolve_device
from eligo.errors import InputError
from eligo.files import write_text, writing
from eligo.pixels.data.config import InputsConfig
from eligo.pixels.data.inputs import normalise_rgb
from eligo.pixels.data.pictures import read_depth, read_rgb
from eligo.pixels.inference.segmenter import Segmenter
from eligo.report.pictures import rgb_picture
from eligo.report.pixels_picture import indexed_labels, overlay_picture, word_picture
from eligo.selection import Selection


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
        count = len(self.classes)
        pictures = {
            "label.png": indexed_labels(self.labels, count),
            "overlay.png": overlay_picture(self.image, self.labels, self.classes),
        }
        if self.tag_maps is not None:
            highest = max(float(self.tag_maps.max()), 1e-6)
            for number, (word, heard) in enumerate(zip(self.words, self.tag_maps, strict=True)):
                name = re.sub(r"\W+", "_", word).strip("_")[:40] or "word"
                pictures[f"tags/{number:02d}_{name}.png"] = word_picture(
                    self.image, heard, word, highest=highest
                )
        for name, picture in pictures.items():
            with writing(out / name) as temporary:
                picture.save(temporary, "PNG")
        for old in (out / "tags").glob("[0-9][0-9]_*.png"):  # of an earlier call with other words
            if f"tags/{old.name}" not in pictures:
                old.unlink()
        result = {**self.summary(), "files": [str(out / name) for name in pictures]}
        write_text(out / "result.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        return result


def predict(
    image: str | Path,
    depth: str | Path | None = None,
    *,
    tags: Sequence[str] = (),
    captions: Sequence[str] = (),
    model: str | Path | Segmenter | None = None,
    inputs: InputsConfig | None = None,
    device: str = "auto",
) -> PixelsPrediction:
    """Segment one image; depth and words are optional.

    `model` is a folder (by default the shipped one) or a loaded `Segmenter`; `inputs` says how the
    files are stored, where that is not as in the model's training.

    >>> from eligo.pixels import predict  # doctest: +SKIP
    >>> predict("rgb.png", "depth.png", tags=["ball", "ring"]).save("out")  # doctest: +SKIP
    """
    segmenter = model
    if not isinstance(segmenter, Segmenter):
        segmenter = Segmenter.from_pretrained(segmenter, device=resolve_device(device))
    inputs = inputs or segmenter.config.inputs
    image = Path(image)
    pixels = read_rgb(image)
    read = None if depth is None else read_depth(Path(depth), inputs, (image, pixels))
    return segment(segmenter, pixels, read, tags=tags, captions=captions, inputs=inputs)


def segment(
    segmenter: Segmenter,
    pixels: UInt8[Tensor, "3 height width"],
    depth: tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]] | None = None,
    *,
    tags: Sequence[str] = (),
    captions: Sequence[str] = (),
    inputs: InputsConfig | None = None,
) -> PixelsPrediction:
    """The same for what is in memory; `depth` is what `decode_depth` makes of it."""
    if tags and captions:
        raise InputError("got tags and captions, expected one kind of words")
    inputs = inputs or segmenter.config.inputs
    if depth is not None and inputs.depth == "none":
        raise InputError("depth: this model was trained without depth (inputs.depth none)")
    text = segmenter.text(tuple(tags) or tuple(captions), sentences=bool(captions))
    where = segmenter.device
    rgb = normalise_rgb(pixels, inputs.channel_order)[None].to(where)
    z, mask = (None, None) if depth is None else (part[None].to(where) for part in depth)
    with torch.no_grad():
        found = segmenter.model(rgb, z, mask, text)
    confidence, labels = found.logits.softmax(1)[0].max(0)
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
