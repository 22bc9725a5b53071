"""Images to patches and texts to words: encoders of `transformers` with a linear head.

ViT, Swin, DINOv2 (with or without registers) and BERT, as in LAPS and SEPS; the vision and text
halves of CLIP and SigLIP; other text encoders like BERT. The number of tokens before the first
patch and the grid of patches are taken from the encoder's config.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
from eligo.pretrained.chat import plain_text, tokenize, warn_truncated
from eligo.pretrained.encoders import count_pieces, max_pieces

Picture = Image.Image | Tensor
"""A PIL image, or (3, height, width) bytes."""
_ENDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_VISION_MODELS = (
    "vit", "dinov2", "dinov2_with_registers", "swin", "clip_vision_model", "siglip_vision_model",
)  # fmt: skip
# At another image size they interpolate their position encoding only on request.
_ASKED_TO_INTERPOLATE = ("vit", "swin", "clip_vision_model", "siglip_vision_model")


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
    registers = getattr(config, "num_register_tokens", 0)
    num_prefix = {"swin": 0, "siglip_vision_model": 0, "dinov2_with_registers": 1 + registers}
    return Layout(num_prefix.get(kind, 1), (side, side))


class ImageEncoder(nn.Module):
    """Pixels to tokens: [CLS] and registers (if there are any), then patches row by row.

    pixels (V, 3, H, W)
      | backbone, hidden states `layers`, concatenated
    (V, prefix + N, width)
      | head: Linear or MlpHead
    tokens (V, prefix + N, C)
    """

    def __init__(
        self,
        backbone: nn.Module,
        embed_dim: int,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        layers: Sequence[int] = (-1,),
        head: "Head | None" = None,
    ) -> None:
        super().__init__()
        config: Any = backbone.config
        self.backbone = backbone
        self.image_size = image_size
        self.layout = layout_of(config, image_size)
        self.layers = tuple(layers)
        self.head: Head = head or nn.Linear(len(layers) * config.hidden_size, embed_dim)
        self.mean: Tensor
        self.std: Tensor
        for name, colours in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(colours).view(3, 1, 1), persistent=False)
        self.lr_multiplier = {"backbone": 1.0}
        asked = config.model_type in _ASKED_TO_INTERPOLATE
        interpolates = config.image_size != image_size and asked
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
        inner = any(layer != -1 for layer in self.layers)
        options = self._options | ({"output_hidden_states": True} if inner else {})
        output = self.backbone(pixel_values=pixels, **options)
        states = torch.cat(
            [
                output.last_hidden_state if layer == -1 else output.hidden_states[layer]
                for layer in self.layers
            ],
            -1,
        )
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
        """Return pictures as bytes of the encoder's image size, on its device."""
        side = self.image_size
        if not (isinstance(images, Tensor) and images.shape[2:] == (side, side)):
            images = self._resized(images)
        return images.to(self.mean.device)

    def _resized(
        self, images: Sequence[Picture] | UInt8[Tensor, "images 3 height width"]
    ) -> UInt8[Tensor, "images 3 side side"]:
        """Squeeze pictures to the encoder's image size (bicubic)."""
        return torch.stack([resize(image, self.image_size) for image in images])


class TextEncoder(nn.Module):
    """Word pieces to words.

    ids (T, L), mask of the words (T, L)
      | backbone
    (T, L, width)
      | head: Linear or MlpHead
    words (T, L, C)

    `special_words`: [CLS], [SEP] and the like count as words.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Any,
        embed_dim: int,
        max_words: int,
        max_dense_words: int,
        *,
        special_words: bool = True,
        head: "Head | None" = None,
    ) -> None:
        super().__init__()
        config: Any = backbone.config
        longest = max_pieces(backbone)
        if max(max_words, max_dense_words) > longest:
            raise InputError(
                f"max_words {max_words} and max_dense_words {max_dense_words}: the text encoder "
                f"reads at most {longest} word pieces"
            )
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.max_words, self.max_dense_words = max_words, max_dense_words
        self.lr_multiplier = {"backbone": 1.0}
        self.head: Head = head or nn.Linear(config.hidden_size, embed_dim)
        ends = [] if special_words else [getattr(tokenizer, name, None) for name in _ENDS]
        self.not_words: tuple[int, ...] = tuple(sorted({end for end in ends if end is not None}))
        """Ids of special tokens that are not words."""
        self.word_mask = partial(word_mask, not_words=self.not_words)
        """Which of some real pieces are words; worker processes use it without the encoder."""
        self._counted: set[str] = set()  # texts that fill the encoder, warned about if cut

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return a vector for each word piece; those outside the mask are meaningless."""
        return self.head(self.states(ids, mask))

    def states(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words hidden"]:
        """Return the backbone's states of word pieces, before the head."""
        return self.run(ids, mask).last_hidden_state[:, : ids.shape[1]]

    def words(
        self,
        texts: Int[Tensor, "texts words"] | Float[Tensor, "texts words hidden"],
        mask: Bool[Tensor, "texts words"],
    ) -> Float[Tensor, "texts words dim"]:
        """Return the words of word pieces, or of their stored states."""
        if texts.is_floating_point():
            return self.head(texts.to(self.head.weight.dtype))
        return self(texts, mask)

    def run(self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]) -> Any:
        """Return the output of the backbone, which reads all but padding."""
        config: Any = self.backbone.config
        if config.model_type == "siglip_text_model":  # trained on padded texts, without a mask
            missing = config.max_position_embeddings - ids.shape[1]
            return self.backbone(input_ids=F.pad(ids, (0, missing), value=self._pad))
        if config.model_type == "clip_text_model":  # causal: padding comes after what is read
            return self.backbone(input_ids=ids)
        read = ids != self._pad if self.not_words else mask
        if config.model_type == "bert":
            # For a mask of two axes transformers tests whether it is full, which is a device sync.
            read = read[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        return self.backbone(input_ids=ids, attention_mask=read)

    @property
    def _pad(self) -> int:
        return self.tokenizer.pad_token_id

    def tokenize(
        self, texts: Sequence[str], *, dense: bool = False
    ) -> tuple[Int[Tensor, "texts words"], Bool[Tensor, "texts words"]]:
        """Return word pieces, padded to the longest text, and the mask of words, on the device.

        A text with more pieces than `longest` is cut, which is logged once for each text.
        """
        empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            what = "dense caption" if dense else "text"
            raise InputError(f"{what} {empty} is empty; expected at least one word")
        encoded = tokenize(
            self.tokenizer,
            [plain_text(self.tokenizer, text) for text in texts],
            padding=True,
            truncation=True,
            max_length=self.longest(dense=dense),
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids, mask = encoded["input_ids"], encoded["attention_mask"].bool()
        is_full = mask.sum(1) == self.longest(dense=dense)
        full = {text for text, full in zip(texts, is_full.tolist(), strict=True) if full}
        if full - self._counted:
            self.warn_truncated(texts, dense=dense)
        device = next(self.parameters()).device
        return ids.to(device), self.word_mask(ids, mask).to(device)

    def warn_truncated(self, texts: Sequence[str], *, dense: bool = False) -> None:
        """Log which texts are cut because they are too long for the model."""
        counts, limit = count_pieces(self.tokenizer, texts), self.longest(dense=dense)
        warn_truncated(texts, counts, limit, what="dense caption" if dense else "text")
        self._counted.update(text for text, n in zip(texts, counts, strict=True) if n >= limit)

    def longest(self, *, dense: bool = False) -> int:
        """Return the maximum number of word pieces of a text, special tokens included."""
        return self.max_dense_words if dense else self.max_words

    def pieces(self, text: str) -> list[str]:
        """Return the word pieces of a text, one for each word of `forward`."""
        ids, mask = self.tokenize([text])
        return [_piece(self.tokenizer, number) for number in ids[0][mask[0]].tolist()]


class MlpHead(nn.Module):
    """`A x + B gelu(C x)`, `x = norm(states)`; the hidden layer is twice as wide as the states."""

    def __init__(self, width: int, embed_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, embed_dim)
        self.hidden = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(2 * width, embed_dim),
        )  # fmt: skip

    def forward(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        """Return the vectors that are matched."""
        states = self.norm(states)
        return self.linear(states) + self.hidden(states)

    @property
    def in_features(self) -> int:
        """Width of the states."""
        return self.linear.in_features

    @property
    def weight(self) -> Tensor:
        """Weights of the linear part."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor:
        """Bias of the linear part."""
        return self.linear.bias


Head = nn.Linear | MlpHead


def word_mask(
    ids: Int[Tensor, "texts words"],
    mask: Bool[Tensor, "texts words"],
    not_words: Sequence[int],
) -> Bool[Tensor, "texts words"]:
    """Return a mask of real pieces without those that are not words.

    A text of such pieces only keeps them: every text has a word.

    >>> word_mask(torch.tensor([[1, 7, 2]]), torch.tensor([[True, True, True]]), (1, 2))
    tensor([[False,  True, False]])
    """
    if not not_words:
        return mask
    words = mask & ~torch.isin(ids, torch.tensor(not_words, device=ids.device))
    return torch.where(words.any(1, keepdim=True), words, mask)


def _piece(tokenizer: Any, number: int) -> str:
    """Return a word piece as it is shown: without marks of word ends, except for BERT's "##"."""
    piece = tokenizer.convert_ids_to_tokens(number)
    return piece.removesuffix("</w>").removeprefix("\u2581").removeprefix("\u0120") or piece


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
