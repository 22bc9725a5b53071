"""Tiny random-weight models of all host families, and batches for them.

Weights are larger than a fresh model's, so that attention is not uniform and every token matters;
logits are scaled to a largest value of about 10.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from tiny_models import BUILDERS, EOS, IMAGE_ID, NUM_LAYERS, PAD, TEXT, VISION_START
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

IMAGE = "image"
"""A segment of a row of `batch`: an image. A number is so many words."""
ENCODES_FIRST = (
    "mm_encoder_outputs" in inspect.signature(LlavaForConditionalGeneration.forward).parameters
)
"""Newer transformers. Older ones repeat pixels for beams, several images of a row in the wrong
order (not in Qwen2.5-VL, which counts images by the token that starts each), and in PaliGemma
without a cache count generated tokens to the prefix; pruned or not."""
NEWER_ONLY = ("qwen3_vl", "gemma3")
"""Families that are refused with older transformers."""
FAMILIES = tuple(name for name in BUILDERS if ENCODES_FIRST or name not in NEWER_ONLY)
STYLES = {
    "grid": ("qwen", "qwen2_vl", "glm4v", *(("qwen3_vl",) if ENCODES_FIRST else ())),
    "nested": ("smolvlm", "idefics3"),
    "tiles": ("llava_next", "llava_onevision"),
    "sizes": ("pixtral", "mistral3"),
}
"""How images are passed; the others take one picture of fixed size per image."""
Segment = int | str | tuple[int, int]

# Rows and columns of the stitched tiles with a newline behind each row, by pixels: worked out by
# hand for tiles of 16 pixels and 4 x 4 tokens, in at most 2 x 2 tiles.
_TILED = {
    "llava_next": {(32, 16): (8, 5), (16, 32): (4, 9), (24, 30): (6, 9)},
    "llava_onevision": {(32, 16): (8, 5), (16, 32): (4, 9), (24, 30): (4, 7)},
}
_NUM_TILES = {(32, 16): 3, (16, 32): 3, (24, 30): 5}


@dataclass
class TinyHost:
    """A model, and how to write batches for it."""

    family: str
    model: Any
    side: int
    """Tokens a side of an image (of one without a size of its own)."""
    pixels: int
    """Pixels a side of it."""

    @property
    def style(self) -> str:
        """How images are passed."""
        return next((name for name, ones in STYLES.items() if self.family in ones), "plain")

    @property
    def text(self) -> nn.Module:
        core = self.model.model
        return core.text_model if self.style == "nested" else core.language_model

    @property
    def projects_before(self) -> bool:
        """Whether stage 1 gets projected features."""
        return self.style in ("grid", "tiles", "sizes") or self.family == "gemma3"

    def grids(self, segment: Segment, images: int = 1) -> list[tuple[int, int]]:
        """Rows and columns of tokens of an image, one of `images` of its row."""
        if self.style == "tiles":
            if self.family == "llava_onevision" and images > 1:
                return [(self.side, self.side), (1, 1)]  # one tile, then a newline
            return [(self.side, self.side), _TILED[self.family][self._size(segment)]]
        return [segment if isinstance(segment, tuple) else (self.side, self.side)]

    def row_grids(self, row: Sequence[Segment]) -> list[tuple[int, int]]:
        """The same of all images of a row."""
        images = [segment for segment in row if not isinstance(segment, int)]
        return [grid for segment in images for grid in self.grids(segment, len(images))]

    def alone(self, rows: Sequence[Sequence[Segment]], number: int) -> dict[str, Any]:
        """One row of `batch(rows)` by itself, without padding."""
        return self.batch(rows[number : number + 1], first=number)

    def batch(
        self,
        rows: Sequence[Sequence[Segment]],
        *,
        padding: str = "left",
        seed: int = 0,
        first: int = 0,
    ) -> dict[str, Any]:
        """Prompts of random words and images, padded to the longest.

        A row depends on its number only, counted from `first`.
        """
        ids, kinds, images, counts, sizes = [], [], [], [], []
        for number, row in enumerate(rows, first):
            generator = torch.Generator().manual_seed(1000 * seed + number)
            row_ids, row_kinds = [], []
            counts.append(sum(not isinstance(segment, int) for segment in row))
            for segment in row:
                if isinstance(segment, int):
                    words = torch.randint(5, 55, (segment,), generator=generator)
                else:
                    if self.style == "grid":
                        row_ids[-1][-1] = VISION_START  # in place of the word before it
                    count = sum(map(math.prod, self.grids(segment, counts[-1])))
                    words = torch.full((count,), IMAGE_ID)
                    images.append(self._pixels(segment, counts[-1], generator))
                    sizes.append(self._size(segment))
                row_ids.append(words)
                row_kinds.append(torch.full_like(words, int(not isinstance(segment, int))))
            ids.append(torch.cat(row_ids))
            kinds.append(torch.cat(row_kinds))
        length = max(map(len, ids))
        mask = torch.stack([_pad(torch.ones_like(row), length, 0, padding) for row in ids])
        inputs: dict[str, Any] = {
            "input_ids": torch.stack([_pad(row, length, PAD, padding) for row in ids]),
            "attention_mask": mask,
        }
        kinds = torch.stack([_pad(row, length, 0, padding) for row in kinds])
        if self.family in ("paligemma", "paligemma2"):
            inputs["token_type_ids"] = torch.zeros_like(mask)
        if self.family == "gemma3":
            inputs["token_type_ids"] = kinds
        if not images:
            return inputs
        if self.style == "grid":
            patch = self.pixels // self.side // 2
            grids = [(1, height // patch, width // patch) for height, width in sizes]
            inputs["image_grid_thw"] = torch.tensor(grids)
            inputs["mm_token_type_ids"] = kinds
            inputs["pixel_values"] = torch.cat(images)
        elif self.style == "nested":
            pixels = torch.zeros(len(rows), max(counts), 3, self.pixels, self.pixels)
            for row, count in enumerate(counts):
                for place in range(count):
                    pixels[row, place] = images.pop(0)
            inputs["pixel_values"] = pixels
        elif self.style in ("tiles", "sizes"):
            inputs["pixel_values"] = _padded(images)
            inputs["image_sizes"] = torch.tensor(sizes)
        else:
            inputs["pixel_values"] = torch.stack(images)
        if self.family == "llava_onevision":
            inputs["batch_num_images"] = torch.tensor(counts)
        return inputs

    def _size(self, segment: Segment) -> tuple[int, int]:
        """Pixels of an image."""
        if self.style == "tiles":
            return segment if isinstance(segment, tuple) else (32, 16)
        rows, columns = segment if isinstance(segment, tuple) else (self.side, self.side)
        return rows * self.pixels // self.side, columns * self.pixels // self.side

    def _pixels(self, segment: Segment, images: int, generator: torch.Generator) -> Tensor:
        height, width = self._size(segment)
        if self.style == "grid":
            patches = math.prod(self.grids(segment)[0]) * 4
            return torch.randn(patches, 3 * 2 * 4 * 4, generator=generator)
        if self.style == "tiles":
            single = self.family == "llava_onevision" and images > 1
            tiles = 1 if single else _NUM_TILES[height, width]
            return torch.randn(tiles, 3, self.pixels, self.pixels, generator=generator)
        return torch.randn(3, height, width, generator=generator)


def build(family: str, attention: Any = "sdpa", num_layers: int = NUM_LAYERS) -> TinyHost:
    """A fresh model."""
    torch.manual_seed(0)
    text = {**TEXT, "num_hidden_layers": num_layers}
    model, side, pixels = BUILDERS[family](text)
    model = model.eval()
    _enliven(model)
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = EOS
    model.generation_config.bos_token_id = 2
    if family == "paligemma2":  # Gemma 2 caps its attention logits, which SDPA cannot
        attention = {"text_config": "eager", "vision_config": attention}
    model.set_attn_implementation(attention)
    host = TinyHost(family, model, side, pixels)
    inputs = host.batch([[3, IMAGE, 5]])
    with torch.no_grad():
        model.lm_head.weight.mul_(10 / model(**inputs).logits.abs().max())
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = None
    return host


@lru_cache
def shared(family: str, attention: str = "sdpa") -> TinyHost:
    """The same, for tests that leave it as it is."""
    return build(family, attention)


@torch.no_grad()
def _enliven(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        # Gemma's projection is a matrix of inputs by outputs.
        fan_in = len(parameter) if name.endswith("projection_weight") else parameter[0].numel()
        scale = 1.0 if "embed_tokens" in name else 1.3 / math.sqrt(fan_in)
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def _pad(row: Tensor, length: int, value: int, side: str) -> Tensor:
    missing = length - len(row)
    return nn.functional.pad(row, (missing, 0) if side == "left" else (0, missing), value=value)


def _padded(images: Sequence[Tensor]) -> Tensor:
    """Stack images (or tiles) that are padded to the largest, with zeros."""
    stacked = torch.zeros(len(images), *torch.tensor([image.shape for image in images]).amax(0))
    for place, image in zip(stacked, images, strict=True):
        place[tuple(slice(size) for size in image.shape)] = image
    return stacked
