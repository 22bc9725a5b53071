"""CLIP and SigLIP models as they are: one vector of each image and text, nothing trained by eligo.

The vectors are the model's own (pooled and projected), from its own image processor; their cosine
is the model's score without scale and bias. An image is a single patch, and all words of a text
have the vector of the text, so that `GlobalCosine` returns that cosine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, CLIPImageProcessorPil, SiglipImageProcessorPil

from eligo.errors import InputError
from eligo.images import as_image
from eligo.io.reading import reading
from eligo.patches.config import RetrievalConfig
from eligo.patches.model.build import image_colours, load_tokenizer
from eligo.patches.model.encoders import ImageEncoder, Layout, Picture, TextEncoder
from eligo.pretrained.encoders import find_backbone, max_pieces
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import load_part, load_stock

# By Pillow, on every machine: those of torchvision resize slightly differently.
_PROCESSORS = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil}
_PROCESSING = ("size", "crop_size", "resample", "do_resize", "do_center_crop")


class PooledImageEncoder(ImageEncoder):
    """Pixels (V, 3, H, W) to the vector of each image, as a single patch: (V, 1, C)."""

    def __init__(
        self, backbone: nn.Module, projection: nn.Module, width: int, processor: Any
    ) -> None:
        config: Any = backbone.config
        side, colours = config.image_size, (processor.image_mean, processor.image_std)
        super().__init__(backbone, width, side, *colours)
        self.head = projection  # pyright: ignore[reportAttributeAccessIssue]
        self.layout = Layout(0, (1, 1))
        self.processor = processor

    def forward(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images 1 dim"]:
        """Return the vectors of normalised pixels."""
        return self.head(self.backbone(pixel_values=pixels).pooler_output).unsqueeze(1)

    def _resized(
        self, images: Sequence[Picture] | UInt8[Tensor, "images 3 height width"]
    ) -> UInt8[Tensor, "images 3 side side"]:
        """Resize and crop pictures with the model's image processor."""
        pictures = [as_image(image, self.image_size) for image in images]
        options = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt"}
        pixels = self.processor(pictures, **options)["pixel_values"]
        return pixels.round().clamp(0, 255).to(torch.uint8)

    def processing(self) -> dict[str, str]:
        """Return the settings by which the image processor resizes and crops."""
        return {name: str(getattr(self.processor, name, None)) for name in _PROCESSING}


class PooledTextEncoder(TextEncoder):
    """Word pieces (T, L) to the vector of each text, repeated for its words: (T, L, C)."""

    def __init__(
        self, backbone: nn.Module, projection: nn.Module, width: int, tokenizer: Any
    ) -> None:
        longest = max_pieces(backbone)
        super().__init__(backbone, tokenizer, width, longest, longest, special_words=False)
        self.head = projection  # pyright: ignore[reportAttributeAccessIssue]

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return the vector of each text at each of its pieces."""
        vectors = self.head(self.run(ids, mask).pooler_output)
        return vectors.unsqueeze(1).expand(-1, ids.shape[1], -1)


def load_pooled(
    name: str,
) -> tuple[RetrievalConfig, PooledImageEncoder, PooledTextEncoder]:
    """Load a whole CLIP or SigLIP model by its folder or hub name, with a config that names it."""
    folder = find_backbone("model", name, weights=False)
    kind = load_part(AutoConfig, folder).model_type
    if kind not in _PROCESSORS:
        raise InputError(
            f"{name}: holds a {kind} model; expected a retrieval model of `eligo patches train`, "
            "or a whole CLIP or SigLIP model; to train from an encoder use "
            "`eligo patches train --model.encoders.vision FOLDER --model.encoders.text FOLDER`"
        )
    tokenizer = load_tokenizer(name)
    image_colours(name)  # raises if there is no image processor
    processor = load_part(_PROCESSORS[kind], folder)
    model = load_stock(
        AutoModel, find_backbone("model", name), exact=False, dtype=torch.float32
    ).eval()
    check_tokenizer(tokenizer, model.text_model, name, least=ENCODER)
    # SigLIP has no projections: its two halves pool to one width.
    projections = [
        getattr(model, part, nn.Identity()) for part in ("visual_projection", "text_projection")
    ]
    width = getattr(projections[0], "out_features", model.config.vision_config.hidden_size)
    images = PooledImageEncoder(model.vision_model, projections[0], width, processor)
    texts = PooledTextEncoder(model.text_model, projections[1], width, tokenizer)
    _check_processor(folder, images)
    encoders = {
        "vision": name, "text": name, "image_size": images.image_size, "embed_dim": width,
        "image_mean": tuple(processor.image_mean), "image_std": tuple(processor.image_std),
        "max_words": texts.max_words, "max_dense_words": texts.max_dense_words,
        "special_words": False,
    }  # fmt: skip
    config = RetrievalConfig().replace({"encoders": encoders, "match.kind": "global"})
    return config, images, texts


@torch.no_grad()
def _check_processor(folder: Path, encoder: PooledImageEncoder) -> None:
    """Raise for an image processor that does more than resize, crop and normalise."""
    side = encoder.image_size
    picture = Image.linear_gradient("L").resize((side + 9, side + 4)).convert("RGB")
    with reading(folder, f"an image processor that returns {side} x {side} normalised pixels"):
        expected = encoder.processor([picture], return_tensors="pt")["pixel_values"]
        found = encoder.normalise(encoder.prepare([picture]))
        if found.shape != expected.shape or expected.shape[2:] != (side, side):
            raise ValueError(f"it returns the shape {tuple(expected.shape)}")
        if not torch.allclose(found, expected, atol=1e-4):
            raise ValueError("it changes pixels in another way than by image_mean and image_std")
