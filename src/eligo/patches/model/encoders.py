"""Images to patches and texts to words: encoders of `transformers` with a linear head.

ViT, Swin, DINOv2 (with or without registers) and BERT, as in LAPS and SEPS. The number of tokens
before the first patch and the grid of patches are taken from the encoder's config.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.images import upright_rgb
from eligo.patches.model.inputs import Words
from eligo.pretrained.chat import warn_truncated
from eligo.pretrained.encoders import count_pieces, tokenize_texts

Picture = Image.Image | Tensor
"""A PIL image, or (3, height, width) bytes."""
_VISION_MODELS = ("vit", "dinov2", "dinov2_with_registers", "swin")


@dataclass(frozen=True)
class Layout:
    """Order of an image encoder's tokens: `num_prefix` of them, then rows of patches."""

    num_prefix: int
    """Tokens before the first patch: [CLS], then registers."""
    grid_hw: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.grid_hw[0] * self.grid_hw[1]


def layout_of(config: Any, image_size: int) -> Layout:
    """Return prefix tokens and patch grid of a `transformers` vision config at an image size."""
    kind = config.model_type
    if kind not in _VISION_MODELS:
        raise InputError(
            f"vision: got a model of type {kind!r}, expected one of {', '.join(_VISION_MODELS)}"
        )
    side = image_size // config.patch_size
    if kind == "swin":
        side //= 2 ** (len(config.depths) - 1)
    num_prefix = {"swin": 0, "dinov2_with_registers": 1 + getattr(config, "num_register_tokens", 0)}
    return Layout(num_prefix.get(kind, 1), (side, side))


class ImageEncoder(nn.Module):
    """Pixels to tokens: [CLS] and registers (if there are any), then patches row by row.

    pixels (V, 3, H, W)
      | backbone
    (V, prefix + N, width)
      | head: Linear
    tokens (V, prefix + N, C)
    """

    def __init__(
        self,
        backbone: nn.Module,
        embed_dim: int,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        config: Any = backbone.config
        self.backbone = backbone
        self.image_size = image_size
        self.layout = layout_of(config, image_size)
        self.head = nn.Linear(config.hidden_size, embed_dim)
        self.mean: Tensor
        self.std: Tensor
        for name, colours in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(colours).view(3, 1, 1), persistent=False)
        self.lr_multiplier = {"backbone": 1.0}
        # At another image size, a ViT or Swin interpolates its position encoding only on request.
        interpolates = config.image_size != image_size and config.model_type in ("vit", "swin")
        self._options = {"interpolate_pos_encoding": True} if interpolates else {}

    def forward(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images tokens dim"]:
        """Return the tokens of normalised pixels."""
        return self.head(self.states(pixels))

    def states(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images tokens hidden"]:
        """Return the backbone's states of normalised pixels, before the head."""
        states = self.backbone(pixel_values=pixels, **self._options).last_hidden_state
        expected = self.layout.num_prefix + self.layout.num_patches
        if states.shape[1] != expected:
            raise InputError(
                f"images: got {pixels.shape[2]} x {pixels.shape[3]} pixels, which give "
                f"{states.shape[1]} tokens; expected {self.image_size} pixels a side ({expected})"
            )
        return states

    def tokens(
        self,
        images: UInt8[Tensor, "images 3 height width"] | Float[Tensor, "images tokens hidden"],
    ) -> Float[Tensor, "images tokens dim"]:
        """Return the tokens of images as bytes, or of their stored states."""
        if images.is_floating_point():
            return self.head(images.to(self.head.weight.dtype))
        return self(self.normalise(images))

    def normalise(
        self, images: UInt8[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images 3 height width"]:
        """Convert bytes to pixels as the backbone expects them."""
        return (images.float() / 255 - self.mean) / self.std

    def prepare(
        self, images: Sequence[Picture] | UInt8[Tensor, "images 3 height width"]
    ) -> UInt8[Tensor, "images 3 side side"]:
        """Return pictures as bytes of the encoder's image size (bicubic), on its device."""
        device, side = self.head.weight.device, self.image_size
        if isinstance(images, Tensor) and images.shape[2:] == (side, side):
            return images.to(device)
        return torch.stack([resize(image, side).to(device) for image in images])


class TextEncoder(nn.Module):
    """Word pieces to words; [CLS] and [SEP] count as words.

    ids (T, L), mask (T, L)
      | backbone: BERT
    (T, L, width)
      | head: Linear
    words (T, L, C)
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Any,
        embed_dim: int,
        max_words: int,
        max_dense_words: int,
    ) -> None:
        super().__init__()
        config: Any = backbone.config
        longest = config.max_position_embeddings
        if max(max_words, max_dense_words) > longest:
            raise InputError(
                f"max_words {max_words} and max_dense_words {max_dense_words}: the text encoder "
                f"reads at most {longest} word pieces"
            )
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.max_words, self.max_dense_words = max_words, max_dense_words
        self.lr_multiplier = {"backbone": 1.0}
        self.head = nn.Linear(config.hidden_size, embed_dim)
        self._counted: set[str] = set()  # texts that fill the encoder, warned about if cut

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return words of word pieces; the values at padding are meaningless."""
        return self.head(self.states(ids, mask))

    def states(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words hidden"]:
        """Return the backbone's states of word pieces, before the head."""
        # For a mask of two axes transformers tests whether it is full, which is a device sync.
        pairs = mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        return self.backbone(input_ids=ids, attention_mask=pairs).last_hidden_state

    def words(
        self,
        texts: Int[Tensor, "texts words"] | Float[Tensor, "texts words hidden"],
        mask: Bool[Tensor, "texts words"],
    ) -> Float[Tensor, "texts words dim"]:
        """Return the words of word pieces, or of their stored states."""
        if texts.is_floating_point():
            return self.head(texts.to(self.head.weight.dtype))
        return self(texts, mask)

    def tokenize(
        self, texts: Sequence[str], *, dense: bool = False
    ) -> tuple[Int[Tensor, "texts words"], Bool[Tensor, "texts words"]]:
        """Return word pieces and their mask, padded to the longest text, on the encoder's device.

        A text with more pieces than `longest` is cut, which is logged once for each text.
        """
        empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            what = "dense caption" if dense else "text"
            raise InputError(f"{what} {empty} is empty; expected at least one word")
        encoded = tokenize_texts(self.tokenizer, texts, self.longest(dense=dense))
        is_full = encoded["attention_mask"].sum(1) == self.longest(dense=dense)
        full = {text for text, full in zip(texts, is_full.tolist(), strict=True) if full}
        if full - self._counted:
            self.warn_truncated(texts, dense=dense)
        device = self.head.weight.device
        return encoded["input_ids"].to(device), encoded["attention_mask"].to(device).bool()

    def warn_truncated(self, texts: Sequence[str], *, dense: bool = False) -> None:
        """Log which texts are cut because they are too long for the model."""
        counts, limit = count_pieces(self.tokenizer, texts), self.longest(dense=dense)
        warn_truncated(texts, counts, limit, what="dense caption" if dense else "text")
        self._counted.update(text for text, n in zip(texts, counts, strict=True) if n >= limit)

    def longest(self, *, dense: bool = False) -> int:
        """Return the maximum number of word pieces of a text, [CLS] and [SEP] included."""
        return self.max_dense_words if dense else self.max_words

    def pieces(self, text: str) -> list[str]:
        """Return the word pieces of a text, one for each word of `forward`."""
        ids = self.tokenize([text])[0][0].tolist()
        return self.tokenizer.convert_ids_to_tokens(ids)


def words_of(vectors: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]) -> Words:
    """Return words with zeros as padding; unlike `read_words`, without a device sync."""
    return Words(vectors.masked_fill(~mask.unsqueeze(-1), 0.0), mask)


def resize(image: Picture, side: int) -> UInt8[Tensor, "3 side side"]:
    """Return a picture as bytes of one size (bicubic)."""
    if isinstance(image, Image.Image):
        image = torch.from_numpy(np.array(upright_rgb(image, side))).permute(2, 0, 1)
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise InputError(
            f"images: got {image.dtype} of shape {tuple(image.shape)}, expected PIL images or "
            "bytes (uint8) of shape (3, height, width)"
        )
    if image.shape[1:] == (side, side):
        return image
    resized = F.interpolate(
        image[None].float(), (side, side), mode="bicubic", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)
