"""Tiny random models of the host families, as `transformers` builds them from a config."""

from typing import Any

from transformers import (
    CLIPVisionConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GemmaConfig,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

NUM_LAYERS = 4
WIDTH = 32
VOCABULARY = 64
IMAGE_ID, VIDEO_ID, PAD, EOS = 60, 61, 0, 1
VISION_START = 62
"""What the processors of Qwen2-VL and its relatives write before every image."""
WINDOW = 12
"""Of sliding layers: shorter than a prompt, longer than an image."""
TEXT: dict[str, Any] = {
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
_GRID_TOWER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": WIDTH,
}
_MROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
    }
}
_GRID_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE_ID,
    "video_token_id": VIDEO_ID,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": 63,
    "tie_word_embeddings": False,
}
_PINPOINTS = [[16, 32], [32, 16], [32, 32]]


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
            **_GRID_TOWER,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        text_config={**text, **_MROPE, "use_sliding_window": False},
        **_GRID_TOKENS,
    )
    return Qwen2_5_VLForConditionalGeneration(config), 4, 32


def _smolvlm(text: dict[str, Any]) -> tuple[Any, int, int]:
    return SmolVLMForConditionalGeneration(_nested(SmolVLMConfig, text)), 4, 32


def _idefics3(text: dict[str, Any]) -> tuple[Any, int, int]:
    return Idefics3ForConditionalGeneration(_nested(Idefics3Config, text)), 4, 32


def _nested(kind: Any, text: dict[str, Any]) -> Any:
    return kind(
        vision_config={**_TOWER, "image_size": 32, "patch_size": 4},
        text_config={**text, "model_type": "llama"},
        scale_factor=2,
        image_token_id=IMAGE_ID,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )


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
    return _with_gemma(GemmaConfig(**text, head_dim=8)), 4, 16


def _paligemma2(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = Gemma2Config(**text, head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW)
    return _with_gemma(config), 4, 16


def _with_gemma(text: Any) -> Any:
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(
            **_TOWER, image_size=16, patch_size=4, projection_dim=WIDTH, vision_use_head=False
        ),
        text_config=text,
        image_token_id=IMAGE_ID,
        image_token_index=IMAGE_ID,
        projection_dim=WIDTH,
        hidden_size=WIDTH,
        tie_word_embeddings=False,
    )
    return PaliGemmaForConditionalGeneration(config)


def _gemma3(text: dict[str, Any]) -> tuple[Any, int, int]:
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(
            **_TOWER, image_size=32, patch_size=4, vision_use_head=False
        ),
        text_config={
            **text,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": WINDOW,
            "layer_types": kinds[: text["num_hidden_layers"]],
        },
        mm_tokens_per_image=16,
        image_token_id=IMAGE_ID,
        image_token_index=IMAGE_ID,
        tie_word_embeddings=False,
    )
    return Gemma3ForConditionalGeneration(config), 4, 32


def _qwen2_vl(text: dict[str, Any]) -> tuple[Any, int, int]:
    tower = {**_GRID_TOWER, "embed_dim": 16, "hidden_size": WIDTH, "mlp_ratio": 2}
    del tower["intermediate_size"], tower["out_hidden_size"]
    config = Qwen2VLConfig(
        vision_config=tower,
        text_config={**text, **_MROPE, "use_sliding_window": False},
        **_GRID_TOKENS,
    )
    return Qwen2VLForConditionalGeneration(config), 4, 32


def _glm4v(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = Glm4vConfig(
        vision_config={**_GRID_TOWER, "image_size": 32},
        text_config={**text, **_MROPE},
        image_start_token_id=VISION_START,
        image_end_token_id=63,
        image_token_id=IMAGE_ID,
        video_token_id=61,
        tie_word_embeddings=False,
    )
    return Glm4vForConditionalGeneration(config), 4, 32


def _qwen3_vl(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = Qwen3VLConfig(
        vision_config={
            **_GRID_TOWER,
            "depth": 3,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
        text_config={**text, **_MROPE, "head_dim": 8},
        **_GRID_TOKENS,
    )
    return Qwen3VLForConditionalGeneration(config), 4, 32


def _llava_next(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**_TOWER, image_size=16, patch_size=4, projection_dim=16),
        text_config=LlamaConfig(**text),
        image_token_index=IMAGE_ID,
        image_grid_pinpoints=_PINPOINTS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    return LlavaNextForConditionalGeneration(config), 4, 16


def _llava_onevision(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            **_TOWER, image_size=16, patch_size=4, vision_use_head=False
        ),
        text_config=Qwen2Config(
            **text, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
        ),
        image_token_index=IMAGE_ID,
        video_token_index=61,
        image_grid_pinpoints=_PINPOINTS,
        vision_aspect_ratio="anyres_max_2",
        tie_word_embeddings=False,
    )
    return LlavaOnevisionForConditionalGeneration(config), 4, 16


def _pixtral(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = LlavaConfig(
        vision_config=PixtralVisionConfig(**_TOWER, image_size=32, patch_size=4),
        text_config=MistralConfig(**text, head_dim=8, sliding_window=WINDOW),
        image_token_index=IMAGE_ID,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    return LlavaForConditionalGeneration(config), 4, 16


def _mistral3(text: dict[str, Any]) -> tuple[Any, int, int]:
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(**_TOWER, image_size=64, patch_size=4),
        text_config=MistralConfig(**text, head_dim=8, sliding_window=None),
        image_token_index=IMAGE_ID,
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return Mistral3ForConditionalGeneration(config), 4, 32


BUILDERS = {
    "llava": _llava,
    "qwen": _qwen,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
    "paligemma": _paligemma,
    "qwen2_vl": _qwen2_vl,
    "glm4v": _glm4v,
    "idefics3": _idefics3,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "qwen3_vl": _qwen3_vl,
    "gemma3": _gemma3,
    "paligemma2": _paligemma2,
    "pixtral": _pixtral,
    "mistral3": _mistral3,
}
"""The model of each family, tokens a side of an image without a size, and its pixels a side."""
