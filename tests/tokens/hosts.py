"""Tiny random-weight models of the five host families, and batches for them.

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
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    GemmaConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

IMAGE = "image"
"""A segment of a row of `batch`: an image. A number is so many words."""
FAMILIES = ("llava", "qwen", "smolvlm", "internvl", "paligemma")
ENCODES_FIRST = (
    "mm_encoder_outputs" in inspect.signature(LlavaForConditionalGeneration.forward).parameters
)
"""Newer transformers. Older ones repeat pixels for beams, several images of a row in the wrong
order (not in Qwen2.5-VL, which counts images by the token that starts each), and in PaliGemma
without a cache count generated tokens to the prefix; pruned or not."""
NUM_LAYERS = 4
WIDTH = 32
VOCABULARY = 64
IMAGE_ID, PAD, EOS = 60, 0, 1
VISION_START = 62
"""What Qwen2.5-VL's processor writes before every image."""
Segment = int | str | tuple[int, int]

_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": EOS,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_channels": 3,
}


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
    def text(self) -> nn.Module:
        core = self.model.model
        return core.text_model if self.family == "smolvlm" else core.language_model

    def tokens(self, segment: Segment) -> int:
        if isinstance(segment, int):
            return segment
        return math.prod(segment) if isinstance(segment, tuple) else self.side**2

    def batch(
        self, rows: Sequence[Sequence[Segment]], *, padding: str = "left", seed: int = 0
    ) -> dict[str, Any]:
        """Prompts of random words and images, padded to the longest."""
        generator = torch.Generator().manual_seed(seed)
        ids, kinds, images, counts = [], [], [], []
        for row in rows:
            row_ids, row_kinds = [], []
            counts.append(sum(not isinstance(segment, int) for segment in row))
            for segment in row:
                if isinstance(segment, int):
                    words = torch.randint(5, 55, (segment,), generator=generator)
                else:
                    if self.family == "qwen":
                        row_ids[-1][-1] = VISION_START  # in place of the word before it
                    words = torch.full((self.tokens(segment),), IMAGE_ID)
                    images.append(self._pixels(segment, generator))
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
        if self.family == "qwen":
            sizes = [s for row in rows for s in row if not isinstance(s, int)]
            grids = [s if isinstance(s, tuple) else (self.side, self.side) for s in sizes]
            inputs["image_grid_thw"] = torch.tensor([(1, 2 * h, 2 * w) for h, w in grids])
            inputs["mm_token_type_ids"] = kinds
            inputs["pixel_values"] = torch.cat(images)
        elif self.family == "smolvlm":
            pixels = torch.zeros(len(rows), max(counts), 3, self.pixels, self.pixels)
            for row, count in enumerate(counts):
                for place in range(count):
                    pixels[row, place] = images.pop(0)
            inputs["pixel_values"] = pixels
        else:
            inputs["pixel_values"] = torch.stack(images)
        if self.family == "paligemma":
            inputs["token_type_ids"] = torch.zeros_like(mask)
        return inputs

    def _pixels(self, segment: Segment, generator: torch.Generator) -> Tensor:
        if self.family == "qwen":
            return torch.randn(4 * self.tokens(segment), 3 * 2 * 4 * 4, generator=generator)
        return torch.randn(3, self.pixels, self.pixels, generator=generator)


def build(family: str, attention: str = "sdpa", num_layers: int = NUM_LAYERS) -> TinyHost:
    """A fresh model."""
    torch.manual_seed(0)
    text = {**_TEXT, "num_hidden_layers": num_layers}
    model, side, pixels = _BUILDERS[family](text)
    model = model.eval()
    _enliven(model)
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = EOS
    model.generation_config.bos_token_id = 2
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
        fan_in = parameter[0].numel()
        scale = 1.0 if "embed_tokens" in name else 1.3 / math.sqrt(fan_in)
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def _pad(row: Tensor, length: int, value: int, side: str) -> Tensor:
    missing = length - len(row)
    return nn.functional.pad(row, (missing, 0) if side == "left" else (0, missing), value=value)


def _llava(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_TOWER, image_size=16, patch_size=4, projection_dim=16),
        text_config=LlamaConfig(**text),
        image_token_id=IMAGE_ID,
        image_token_index=IMAGE_ID,
        image_seq_length=16,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    return LlavaForConditionalGeneration(config), 4, 16


def _qwen(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "out_hidden_size": WIDTH,
            "tokens_per_second": 2,
        },
        text_config={
            **text,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
            },
            "use_sliding_window": False,
        },
        image_token_id=IMAGE_ID,
        video_token_id=61,
        vision_start_token_id=VISION_START,
        vision_end_token_id=63,
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config), 4, 32


def _smolvlm(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = SmolVLMConfig(
        vision_config={**_TOWER, "image_size": 32, "patch_size": 4, "model_type": "smolvlm_vision"},
        text_config={**text, "model_type": "llama"},
        scale_factor=2,
        image_token_id=IMAGE_ID,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )
    return SmolVLMForConditionalGeneration(config), 4, 32


def _internvl(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = InternVLConfig(
        vision_config={
            **_TOWER,
            "image_size": [32, 32],
            "patch_size": [4, 4],
            "model_type": "internvl_vision",
        },
        text_config=Qwen2Config(**text),
        downsample_ratio=0.5,
        image_token_id=IMAGE_ID,
        image_seq_length=16,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    return InternVLForConditionalGeneration(config), 4, 32


def _paligemma(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(
            **_TOWER, image_size=16, patch_size=4, projection_dim=WIDTH, vision_use_head=False
        ),
        text_config=GemmaConfig(**text, head_dim=8),
        image_token_id=IMAGE_ID,
        image_token_index=IMAGE_ID,
        projection_dim=WIDTH,
        hidden_size=WIDTH,
        tie_word_embeddings=False,
    )
    return PaliGemmaForConditionalGeneration(config), 4, 16


_BUILDERS = {
    "llava": _llava,
    "qwen": _qwen,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
    "paligemma": _paligemma,
}
