"""Images to patches and texts to words: stock encoders of `transformers` with a linear head.

ViT, Swin, DINOv2 (with or without registers) and BERT, as in LAPS and SEPS. How many tokens stand
before the first patch, and how the patches lie, is read off the encoder's config, never guessed.
"""

from collections.abc import Callable, Sequence
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
from eligo.pretrained.chat import plain_text, remark_cut, tokenize

Picture = Image.Image | Tensor
"""A PIL image, or (3, height, width) bytes."""
_AT_ONCE = 1024  # texts whose pieces are counted


@dataclass(frozen=True)
class Layout:
    """How the tokens of an image encoder lie: `num_prefix` of them, then rows of patches."""

    num_prefix: int
    """Tokens before the first patch: [CLS], then registers."""
    grid_hw: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.grid_hw[0] * self.grid_hw[1]


def _plain_grid(config: Any, image_size: int, prefix: int) -> Layout:
    side = image_size // config.patch_size
    return Layout(prefix, (side, side))


def _swin_grid(config: Any, image_size: int) -> Layout:
    side = image_size // config.patch_size // 2 ** (len(config.depths) - 1)
    return Layout(0, (side, side))


_LAYOUTS: dict[str, Callable[[Any, int], Layout]] = {
    "vit": lambda config, size: _plain_grid(config, size, 1),
    "dinov2": lambda config, size: _plain_grid(config, size, 1),
    "dinov2_with_registers": lambda config, size: _plain_grid(
        config, size, 1 + config.num_register_tokens
    ),
    "swin": _swin_grid,
}


def layout_of(config: Any, image_size: int) -> Layout:
    """Prefix tokens and patch grid of a `transformers` vision config at an image size."""
    found = _LAYOUTS.get(config.model_type)
    if found is None:
        raise InputError(
            f"vision: got a model of type {config.model_type!r}, expected one of "
            f"{', '.join(_LAYOUTS)}"
        )
    return found(config, image_size)


class ImageEncoder(nn.Module):
    """Pixels to tokens: [CLS] and registers (if there are any), then patches row by row.

    The way of the tensors:
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
        # A ViT or Swin shown another size than it was built for must be asked to stretch its grid.
        other = config.image_size != image_size and config.model_type in ("vit", "swin")
        self._options = {"interpolate_pos_encoding": True} if other else {}

    def forward(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images tokens dim"]:
        """Tokens of normalised pixels."""
        states = self.backbone(pixel_values=pixels, **self._options).last_hidden_state
        expected = self.layout.num_prefix + self.layout.num_patches
        if states.shape[1] != expected:
            raise InputError(
                f"images: got {pixels.shape[2]} x {pixels.shape[3]} pixels, which give "
                f"{states.shape[1]} tokens; expected {self.image_size} pixels a side ({expected})"
            )
        return self.head(states)

    def normalise(
        self, images: UInt8[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images 3 height width"]:
        """Bytes to pixels as the backbone expects them."""
        return (images.float() / 255 - self.mean) / self.std

    def prepare(
        self, images: Sequence[Picture] | UInt8[Tensor, "images 3 height width"]
    ) -> UInt8[Tensor, "images 3 side side"]:
        """Pictures of any size as bytes of the encoder's size (bicubic), on its device."""
        device, side = self.head.weight.device, self.image_size
        if isinstance(images, Tensor) and images.shape[2:] == (side, side):
            return images.to(device)
        return torch.stack([_resized(image, side).to(device) for image in images])


class TextEncoder(nn.Module):
    """Word pieces to words; [CLS] and [SEP] count as words.

    The way of the tensors:
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
        self._told: set[str] = set()  # long texts that were counted

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Words of word pieces; what stands in padding means nothing."""
        # Of a mask with two axes transformers asks whether it is full, which waits for the device.
        pairs = mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        states = self.backbone(input_ids=ids, attention_mask=pairs).last_hidden_state
        return self.head(states)

    def tokenize(
        self, texts: Sequence[str], *, dense: bool = False
    ) -> tuple[Int[Tensor, "texts words"], Bool[Tensor, "texts words"]]:
        """Word pieces and which are real, padded to the longest text, on the encoder's device.

        A text with more pieces than `longest` is cut, which is logged once for each text.
        """
        empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            what = "dense caption" if dense else "text"
            raise InputError(f"{what} {empty} is empty; expected at least one word")
        found = tokenize(
            self.tokenizer,
            [plain_text(self.tokenizer, text) for text in texts],
            padding=True,
            truncation=True,
            max_length=self.longest(dense=dense),
            return_tensors="pt",
        )
        whole = found["attention_mask"].sum(1) == self.longest(dense=dense)
        if bool(whole.any()):
            full = [text for text, is_full in zip(texts, whole.tolist(), strict=True) if is_full]
            if not self._told.issuperset(full):
                self.remark_cut(texts, dense=dense)
        device = self.head.weight.device
        return found["input_ids"].to(device), found["attention_mask"].to(device).bool()

    def remark_cut(self, texts: Sequence[str], *, dense: bool = False) -> None:
        """Log which texts are too long for the model, which reads their beginning alone."""
        counts, read = self.count_pieces(texts), self.longest(dense=dense)
        remark_cut(texts, counts, read, what="dense caption" if dense else "text")
        # All that fill it, cut or not: they need not be counted again.
        self._told.update(text for text, n in zip(texts, counts, strict=True) if n >= read)

    def longest(self, *, dense: bool = False) -> int:
        """Word pieces that are read of a text, [CLS] and [SEP] included."""
        return self.max_dense_words if dense else self.max_words

    def count_pieces(self, texts: Sequence[str]) -> list[int]:
        """How many word pieces each text has as a whole, [CLS] and [SEP] included."""
        plain = [plain_text(self.tokenizer, text) for text in texts]
        parts = (plain[i : i + _AT_ONCE] for i in range(0, len(plain), _AT_ONCE))
        found = (tokenize(self.tokenizer, part, verbose=False)["input_ids"] for part in parts)
        return [len(ids) for part in found for ids in part]

    def pieces(self, text: str) -> list[str]:
        """The word pieces of a text, as the words of `forward` stand for them."""
        ids = self.tokenize([text])[0][0].tolist()
        return self.tokenizer.convert_ids_to_tokens(ids)


def words_of(vectors: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]) -> Words:
    """Words whose padding is zero; unlike `sides.read_words` it never looks at a value."""
    return Words(vectors.masked_fill(~mask.unsqueeze(-1), 0.0), mask)


def _resized(image: Picture, side: int) -> UInt8[Tensor, "3 side side"]:
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
