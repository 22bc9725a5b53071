"""Vectors of questions, answers and images: an encoder of `transformers`, or words alone.

`words` needs no model (`embed_texts`); CLIP and SigLIP bring a view of the image beside the text.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.images import open_image, side_of
from eligo.pretrained.chat import plain_text, remark_cut, tokenize
from eligo.pretrained.devices import resolve_device
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import find_encoder, load_part, load_stock
from eligo.shots.data.text import embed_texts

WORDS = "words"
_BATCH = 64


@runtime_checkable
class Encoder(Protocol):
    """Text always; images if it can."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """A vector for each."""
        ...

    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """A vector for each file."""
        ...


class WordsEncoder:
    """Counts words: no model, no images."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """A vector for each."""
        return embed_texts(texts)

    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """Refused: words see nothing."""
        raise InputError(
            f"encoder {WORDS}: cannot see {paths[0]}; give --encoder FOLDER of a CLIP or SigLIP "
            "model"
        )


class ClipEncoder:
    """A model with a text and an image tower of one width: CLIP, SigLIP."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model.eval(), processor

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """A vector for each; long texts are cut as the model was trained, which is logged."""
        tokenizer = self.processor.tokenizer
        limit = self.model.config.text_config.max_position_embeddings
        plain = [plain_text(tokenizer, text) for text in texts]
        found = tokenize(tokenizer, plain, verbose=False)["input_ids"] if plain else []
        counts = [len(ids) for ids in found]
        remark_cut(texts, counts, limit)
        parts = []
        for start in range(0, len(texts), _BATCH):
            # SigLIP was trained on texts padded to the full length, and CLIP does not mind.
            inputs = tokenize(
                tokenizer,
                plain[start : start + _BATCH],
                padding="max_length", truncation=True, max_length=limit, return_tensors="pt",
            ).to(self.model.device)  # fmt: skip
            parts.append(_features(self.model.get_text_features(**inputs)))
        return torch.cat(parts)

    @torch.no_grad()
    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """A vector for each file; one that comes again is looked at once."""
        unique, side = list(dict.fromkeys(paths)), side_of(self.processor)
        parts = []
        for start in range(0, len(unique), _BATCH):
            opened = [open_image(path, side) for path in unique[start : start + _BATCH]]
            pixels = self.processor.image_processor(opened, return_tensors="pt")["pixel_values"]
            pixels = pixels.to(self.model.device, self.model.dtype)
            parts.append(_features(self.model.get_image_features(pixel_values=pixels)))
        row = {path: place for place, path in enumerate(unique)}
        return torch.cat(parts)[[row[path] for path in paths]]


def open_encoder(name: str, device: str = "auto") -> Encoder:
    """`words`, or the folder or hub name of a CLIP or SigLIP model."""
    if name == WORDS:
        return WordsEncoder()
    from transformers import AutoConfig, AutoModel, AutoProcessor

    folder = find_encoder("encoder", name)
    about = load_part(AutoConfig, folder)
    if not hasattr(about, "text_config") or not hasattr(about, "vision_config"):
        raise InputError(
            f"encoder: {name} holds a {about.model_type}, expected CLIP or SigLIP, or {WORDS}; "
            "vectors of another encoder can be given in Python: Pool(ids, vectors)"
        )
    processor = load_part(AutoProcessor, folder)
    model = load_stock(AutoModel, folder, exact=False)
    if not hasattr(model, "get_image_features"):
        raise InputError(f"encoder: {name} is a {type(model).__name__}, expected CLIP or SigLIP")
    check_tokenizer(processor, model.text_model, f"encoder: {name}", least=ENCODER)
    return ClipEncoder(model.to(resolve_device(device)), processor)


def _features(output: Any) -> Tensor:
    """Newer versions wrap the vectors."""
    return getattr(output, "pooler_output", output).float().cpu()
