"""Tiny random parts of a vision-language model, captions and questions, as files."""

import json
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    Dinov2Config,
    Dinov2Model,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from eligo.cli import main

WORDS = [
    "question",
    "answer",
    "describe",
    "the",
    "picture",
    "is",
    "there",
    "a",
    "in",
    "what",
    "colour",
    "yes",
    "no",
    "red",
    "blue",
    "green",
    "ball",
    "box",
    "how",
    "many",
    "one",
    "two",
    "and",
    ".",
    ":",
    "?",
]
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}


def make_tower(kind: str, folder: Path, image_size: int = 56, layers: int = 3) -> Path:
    torch.manual_seed(0)
    shape = SIZES | {"patch_size": 14, "image_size": image_size, "num_hidden_layers": layers}
    if kind == "dinov2":
        tower = Dinov2Model(Dinov2Config(**shape))
    elif kind == "clip":
        tower = CLIPVisionModel(CLIPVisionConfig(**shape, intermediate_size=32))
    else:
        tower = SiglipVisionModel(SiglipVisionConfig(**shape, intermediate_size=32))
    tower.save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return folder


def make_language(folder: Path, layers: int = 3) -> Path:
    torch.manual_seed(1)
    vocabulary = {word: n for n, word in enumerate(["<unk>", "<pad>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    config = LlamaConfig(
        **SIZES | {"num_hidden_layers": layers}, vocab_size=len(vocabulary),
        intermediate_size=32, num_key_value_heads=1, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_host(folder: Path, name: str = "host") -> Path:
    """Join the tower and the language model of a folder, by the command."""
    words = [folder / "tower", "--language", folder / "language", "--out", folder / name]
    assert main(["tokens", "build", "--tower", *map(str, words), "--json"]) == 0
    return folder / name


def make_all(folder: Path, layers: int = 3, photos: int = 24) -> Path:
    """Write parts, their host, and photos."""
    make_tower("dinov2", folder / "tower")
    make_language(folder / "language", layers)
    make_host(folder)
    make_photos(folder / "photos", photos)
    return folder


def make_photos(folder: Path, count: int = 24) -> Path:
    """Write one-coloured shapes with captions (Karpathy's form) and questions."""
    (folder / "images").mkdir(parents=True)
    images, questions = [], []
    for number in range(count):
        colour, thing = ("red", "blue", "green")[number % 3], ("ball", "box")[number // 8 % 2]
        split = "val" if number % 4 == 3 else "test" if number % 8 == 5 else "train"
        picture = Image.new("RGB", (70, 60), "white")
        draw = ImageDraw.Draw(picture)
        shape = draw.ellipse if thing == "ball" else draw.rectangle
        shape((10 + number // 6, 10, 50, 50), fill=colour)
        name = f"{number}.png"
        picture.save(folder / "images" / name)
        captions = [f"a {colour} {thing} .", f"there is a {colour} {thing}"]
        images.append(
            {"filename": name, "split": split, "sentences": [{"raw": raw} for raw in captions]}
        )
        asked = [
            ("exist", f"is there a {thing} in the picture?", "yes"),
            ("colour", f"what colour is the {thing}?", colour),
        ]
        questions += [
            {"image": name, "split": split, "family": family, "question": text, "answer": answer}
            for family, text, answer in asked
        ]
    (folder / "captions.json").write_text(json.dumps({"images": images}))
    lines = "".join(json.dumps(row) + "\n" for row in questions)
    (folder / "questions.jsonl").write_text(lines)
    return folder
