"""Pretrained encoders: CLIP and SigLIP models, and tokenising for every text encoder.

Shared by the families: patches (BERT word features), pixels and shots (text and image vectors).
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.images import open_image, side_of
from eligo.pretrained.chat import plain_text, tokenize, warn_truncated
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import find_encoder, load_part, load_stock

_COUNTED = 1024  # texts tokenised at a time


def count_pieces(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the number of word pieces of each whole text, special tokens included."""
    plain = [plain_text(tokenizer, text) for text in texts]
    parts = (plain[start : start + _COUNTED] for start in range(0, len(plain), _COUNTED))
    return [
        len(ids) for part in parts for ids in tokenize(tokenizer, part, verbose=False)["input_ids"]
    ]


def tokenize_texts(
    tokenizer: Any, texts: Sequence[str], longest: int, *, padding: bool | str = True
) -> Any:
    """Return ids and mask of texts, as plain text, cut to `longest` word pieces."""
    return tokenize(
        tokenizer,
        [plain_text(tokenizer, text) for text in texts],
        padding=padding,
        truncation=True,
        max_length=longest,
        return_tensors="pt",
    )


class ClipEncoder:
    """A frozen CLIP or SigLIP model, or the text half of one: vectors of texts and images."""

    def __init__(self, model: Any, processor: Any, *, batch_size: int = 64) -> None:
        self.model, self.processor, self.batch_size = model.eval(), processor, batch_size
        self.tokenizer = getattr(processor, "tokenizer", processor)
        config = getattr(model.config, "text_config", model.config)
        self.longest: int = config.max_position_embeddings
        """Word pieces that the model reads; longer texts are cut."""

    @torch.no_grad()
    def texts(self, texts: Sequence[str], *, warn: bool = True) -> Float[Tensor, "texts dim"]:
        """Return a vector for each text, in float32 on the CPU; `warn` logs which texts are cut."""
        if warn:
            warn_truncated(texts, count_pieces(self.tokenizer, texts), self.longest)
        whole = hasattr(self.model, "get_text_features")
        # SigLIP was trained on texts padded to the full length; CLIP gives the same either way.
        padding = "max_length" if whole else True
        parts = []
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            inputs = tokenize_texts(self.tokenizer, batch, self.longest, padding=padding)
            inputs = inputs.to(self.model.device)
            if whole:
                parts.append(_vectors(self.model.get_text_features(**inputs)))
            else:
                parts.append(self.model(**inputs).text_embeds.float().cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """Return a vector for each image file, in float32 on the CPU; reads repeated files once."""
        unique, side = list(dict.fromkeys(paths)), side_of(self.processor)
        parts = []
        for start in range(0, len(unique), self.batch_size):
            opened = [open_image(path, side) for path in unique[start : start + self.batch_size]]
            pixels = self.processor.image_processor(opened, return_tensors="pt")["pixel_values"]
            pixels = pixels.to(self.model.device, self.model.dtype)
            parts.append(_vectors(self.model.get_image_features(pixel_values=pixels)))
        row = {path: number for number, path in enumerate(unique)}
        return torch.cat(parts)[[row[path] for path in paths]]


def _vectors(output: Any) -> Tensor:
    """Return the vectors, which newer versions of transformers wrap in an output object."""
    return getattr(output, "pooler_output", output).float().cpu()


def load_clip(key: str, name: str) -> ClipEncoder:
    """Load a CLIP or SigLIP model with its processor; `key` names the setting in errors."""
    from transformers import AutoConfig, AutoModel, AutoProcessor

    folder = find_encoder(key, name)
    config = load_part(AutoConfig, folder)
    refusal = InputError(f"{key}: {name} holds a {config.model_type}, expected CLIP or SigLIP")
    if not hasattr(config, "text_config") or not hasattr(config, "vision_config"):
        raise refusal
    processor = load_part(AutoProcessor, folder)
    model = load_stock(AutoModel, folder, exact=False)
    if not hasattr(model, "get_text_features"):
        raise refusal
    check_tokenizer(processor, model.text_model, f"{key}: {name}", least=ENCODER)
    return ClipEncoder(model, processor)


def load_clip_text(key: str, name: str) -> ClipEncoder:
    """Load the text half of a CLIP model; `key` names the setting in errors."""
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    folder = find_encoder(key, name)
    tokenizer = load_part(AutoTokenizer, folder)
    model = load_stock(CLIPTextModelWithProjection, folder, exact=False)
    check_tokenizer(tokenizer, model, f"{key}: {name}", least=ENCODER)
    return ClipEncoder(model, tokenizer, batch_size=256)
