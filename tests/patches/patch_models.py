"""Tiny models, scenes and files shared by the training tests."""

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    BertConfig,
    BertModel,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTModel,
)

from eligo.patches.config import PatchesTrainConfig
from eligo.patches.model.build import scene_tokenizer

_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_BACKBONES: dict[str, Any] = {
    "vit": lambda: ViTModel(
        ViTConfig(**_SIZES, intermediate_size=32, image_size=32, patch_size=8),
        add_pooling_layer=False,
    ),
    "dinov2": lambda: Dinov2Model(Dinov2Config(**_SIZES, image_size=28, patch_size=7)),
    "registers": lambda: Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(**_SIZES, image_size=28, patch_size=7, num_register_tokens=4)
    ),
    "swin": lambda: SwinModel(
        SwinConfig(
            image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
        ),
        add_pooling_layer=False,
    ),
}


def vision_folder(folder: Path, kind: str, **processor: Any) -> str:
    """A tiny image encoder of a real class, saved as `transformers` saves them."""
    torch.manual_seed(3)
    _BACKBONES[kind]().save_pretrained(folder / kind)
    if processor:
        (folder / kind / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(folder / kind)


def text_folder(folder: Path) -> str:
    """A tiny BERT that reads the scenes' words, with its tokenizer."""
    tokenizer = scene_tokenizer()
    config = BertConfig(
        **_SIZES, intermediate_size=32, vocab_size=len(tokenizer), max_position_embeddings=160
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    return str(folder / "bert")


def smoke(**changes: Any) -> PatchesTrainConfig:
    """A run of a few steps on a few small scenes."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return PatchesTrainConfig().smoke().replace(dotted)


def karpathy(folder: Path, splits: tuple[str, ...], captions: int = 2) -> tuple[Path, Path]:
    """A Karpathy file and its images: one image for each given split."""
    (folder / "images").mkdir()
    entries = []
    for index, split in enumerate(splits):
        name = f"picture_{index}.png"
        pixels = torch.randint(256, (40, 48, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / "images" / name)
        sentences = [{"raw": f"there is a red ball and {n} gem ."} for n in range(captions)]
        entries.append(
            {"filename": name, "imgid": index, "cocoid": 500 + index, "split": split,
             "sentences": sentences}
        )  # fmt: skip
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": entries, "dataset": "own"}))
    return path, folder / "images"
