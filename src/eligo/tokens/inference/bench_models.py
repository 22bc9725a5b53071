"""What the clock runs: hosts of real shapes with random weights, and the default plan for them.

Speed does not depend on what weights say, so nothing is downloaded; answers mean nothing. Weights
are drawn on the device itself, where seven billion of them take a second or two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eligo.tokens.cost.proposals import default_schedule
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.token_merger import MergerKind, MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1

Shape = Literal["llava15", "narrow"]
_TOWER: Mapping[Shape, Mapping[str, Any]] = {
    "llava15": {
        "image_size": 336, "patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768,
    },
    "narrow": {
        "image_size": 84, "patch_size": 14, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 16,
    },
}  # fmt: skip
_TEXT: Mapping[Shape, Mapping[str, Any]] = {
    "llava15": {
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
    "narrow": {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """How large the learned parts are."""

    kind: MergerKind
    dim: int


PARTS: Mapping[str, Parts] = {
    "llava15": Parts("simple", 512),  # configs/tokens/llava15.yaml
    "tiny": Parts("question_aware", 128),  # configs/tokens/default.yaml
    "narrow": Parts("simple", 8),
}


def random_llava(shape: Shape, device: torch.device) -> Any:
    """A LLaVA of that shape: bfloat16 on a GPU, float32 on a CPU; SDPA."""
    from transformers import (
        AutoModelForImageTextToText,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
    )

    text = LlamaConfig(**_TEXT[shape], tie_word_embeddings=False)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_TOWER[shape]),
        text_config=text,
        image_token_index=_TEXT[shape]["vocab_size"] - 1,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    return model.eval().requires_grad_(False)


def random_inputs(model: Any, batch: int, text: int) -> dict[str, Tensor]:
    """Prompts of one image and `text` words, none padded, the image after the first word."""
    parameter, config = next(model.parameters()), model.config
    vision = HostShape.of(model).vision
    assert vision is not None
    words = torch.randint(3, config.image_token_id, (batch, text), device=parameter.device)
    image = words.new_full((batch, vision), config.image_token_id)
    input_ids = torch.cat([words[:, :1], image, words[:, 1:]], dim=1)
    side = config.vision_config.image_size
    pixels = torch.randn((batch, 3, side, side), device=parameter.device, dtype=parameter.dtype)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "pixel_values": pixels,
    }


def default_plan(model: Any, parts: Parts, text: int) -> Plan:
    """The default schedule with a merger and pruners that nobody taught."""
    host = HostShape.of(model)
    assert host.vision is not None
    schedule = default_schedule(host, host.vision, text)
    width, device = host.layer.width, next(model.parameters()).device
    aware = parts.kind == "question_aware"
    merger = TokenMerger(
        MergerShape(
            kind=parts.kind,
            width=host.feature_width,
            question_width=width if aware else None,
            dim=parts.dim,
        )
    )
    layers = tuple(layer for layer, _ in schedule.cuts)
    pruners = LayerPruners(PrunersShape(layers=layers, width=width, dim=parts.dim))
    for part in (merger, pruners):
        part.to(device).eval().requires_grad_(False)
    cuts = [Cut(layer, pruners[layer], budget) for layer, budget in schedule.cuts]
    return Plan(Stage1(merger, schedule.merged), cuts)
