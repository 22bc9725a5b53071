"""Live segmentation: an image, optional depth and tags; classes with and without the tags."""

from functools import cached_property
from time import perf_counter

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.explorer.tools import LiveExample, LiveImage, LiveRequest, LiveText, LiveTool
from eligo.pixels.config import MIN_SIZE
from eligo.pixels.data.pictures import decode_depth
from eligo.pixels.inference.predict import PixelsPrediction, segment
from eligo.pixels.inference.record import record
from eligo.pixels.inference.segmenter import SHIPPED, Segmenter, model_folder, stored_config
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import depth_picture, rgb_picture
from eligo.scenes.config import ROOMS
from eligo.scenes.dataset import SceneDataset, SceneItem
from eligo.scenes.painter import label_names

_EXAMPLES = 8
_SIDE = 128  # pixels of the longer side, as in training
_MOST_TAGS = 32
_SHOWN = 0.01  # classes with a smaller share of the pixels are not listed
_FARTHEST = 65535  # 16 bits


def pixels_tool(device: str) -> LiveTool | None:
    """Return the tool, or None if its model is not shipped."""
    if SHIPPED not in shipped_models():
        return None
    config = stored_config(model_folder(SHIPPED))
    inputs = config.inputs
    scale = inputs.depth_scale if inputs.depth == "metric" else None
    items = SceneDataset(ROOMS, "validation", _EXAMPLES).__getitems__(range(_EXAMPLES))
    examples = [_example(item, scale) for item in items]
    truth = {example.image: item.labels for example, item in zip(examples, items, strict=True)}
    if config.classes != label_names(ROOMS):  # labels of another world
        truth = {}
    return LiveTool(
        name="pixels",
        title="Guide pixels by words",
        text=LiveText("Tags, between commas", "wall, floor, ball", examples[0].text),
        depth=inputs.depth != "none",
        examples=examples,
        run=_Guide(device, truth).run,
    )


def _example(item: SceneItem, scale: float | None) -> LiveExample:
    depth = None
    if scale is not None:
        stored = (item.depth * scale).round().clamp(0, _FARTHEST).numpy().astype(np.uint16)
        depth = Image.fromarray(stored)
    tags = ", ".join(item.tags)
    return LiveExample(item.id, tags, rgb_picture(item.rgb), tags, depth)


class _Guide:
    """The model, loaded on first use, and the labels of the examples."""

    def __init__(self, device: str, truth: dict[LiveImage, UInt8[Tensor, "height width"]]) -> None:
        self.device, self.truth = device, truth

    @cached_property
    def segmenter(self) -> Segmenter:
        return Segmenter.from_pretrained(device=self.device)

    def run(self, request: LiveRequest) -> ExplorerRecord:
        """Return the attention to each tag, and the classes with and without tags."""
        tags = [tag.strip() for tag in request.text.split(",") if tag.strip()]
        if len(tags) > _MOST_TAGS:
            raise InputError(f"text: got {len(tags)} tags, expected at most {_MOST_TAGS}")
        assert request.image is not None
        picture = _scaled(request.image.picture)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        z, shown = None, None
        if request.depth is not None:
            values = np.array(request.depth.resize(picture.size, Image.Resampling.NEAREST))
            z = decode_depth(values, self.segmenter.config.inputs)
            shown = depth_picture(torch.from_numpy(values.astype(np.float32)), z[1][0])
        began = perf_counter()
        tagged = segment(self.segmenter, pixels, z, tags=tags)
        seconds = perf_counter() - began
        untagged = segment(self.segmenter, pixels, z) if tags else tagged
        truth = self.truth.get(request.image)
        labels = {}
        if tags:
            labels["labels without tags"] = untagged.labels
        if truth is not None:
            labels["the truth"] = truth
        compared = [*([("with tags", tagged)] if tags else []), ("without tags", untagged)]
        return record(
            tagged,
            depth=shown,
            labels=labels,
            answers=[_answer(who, result, truth) for who, result in compared],
            cost={
                "image": f"{picture.width} x {picture.height} pixels",
                "tags": str(len(tagged.words)),
                "time": f"{1000 * seconds:.0f} ms, once, on this machine",
            },
        )


def _answer(who: str, result: PixelsPrediction, truth: Tensor | None) -> Answer:
    parts = [
        f"{row['class']} {row['share']:.0%}"
        for row in result.summary()["classes"]
        if row["share"] >= _SHOWN
    ]
    if truth is not None:
        parts.append(f"{(result.labels == truth).float().mean():.1%} of the pixels right")
    return Answer(who, ", ".join(parts))


def _scaled(picture: Image.Image) -> Image.Image:
    """Scale to the size of training images; twice that for a narrow image."""
    for side in (_SIDE, 2 * _SIDE):
        small = picture.copy()
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        if min(small.size) >= MIN_SIZE:
            return small
    raise InputError(
        f"image: got {picture.width} x {picture.height} pixels, expected at least {MIN_SIZE} each "
        f"way when it is scaled down to {2 * _SIDE}; crop or enlarge it"
    )
