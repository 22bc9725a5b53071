"""The Semantic Alignment Module (SAM): every pixel looks at the words of its image.

From the SAM attention guide; `CrossAttention` and `SimilarityScale` do the looking. Two forms:

- `gated` (default, ours). Where a sample has words, m = 1, else 0:
  encoder `branch = g1 o + m gamma CA(LN(o), t)`, outside LayerScale, which would silence the words
  (its 1e-6); decoder `y = x + m alpha CA(LN1(x), t)`, `out = y + m beta FFN(LN2(y))`. The gates
  start at 1e-3 (at 0 the temperature's first gradient would be 0). Without words it is exactly the
  identity, sample by sample.
- `legacy`: the original's formulas, for its weights and for comparison:
  encoder `branch = g1 (o + gamma Wo Attn(o, t))`; decoder `z = LN1(x)`, `y = LN2(z + alpha Wo
  Attn(z, t))`, `out = y + FFN(y)`. There a decoder sample without words still gets norms, FFN and
  the output bias (the bias not if the whole batch has no word), and a learnable temperature is
  clamped where it starts, so that it never moves.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.nn import CrossAttention, SimilarityScale
from eligo.pixels.config import SamConfig, SideConfig
from eligo.pixels.text.batch import Text

_FIRST_GATE = 1e-3
_LEGACY_GAMMA, _LEGACY_ALPHA = 0.5, 0.1
_FAST = 10.0  # scales and gates are single numbers with far to go: ten times the learning rate


class Words(NamedTuple):
    """An image's words as one module sees them; made once, however many blocks share it."""

    keys: Float[Tensor, "batch heads words head_dim"]
    values: Float[Tensor, "batch heads words head_dim"]
    mask: Bool[Tensor, "batch words"]


class SemanticAlignment(nn.Module):
    """What all forms share: cross-attention of pixels to words, behind a gate."""

    lr_multiplier = {"gate": _FAST, "attention.scale.log_scale": _FAST}  # noqa: RUF012

    def __init__(
        self, dim: int, text_dim: int, num_heads: int, side: SideConfig, gate: float, legacy: bool
    ) -> None:
        super().__init__()
        scale = SimilarityScale(
            side.similarity,
            learnable=side.learnable_temp,
            init=side.logit_init,
            legacy=legacy,
        )
        self.attention = CrossAttention(dim, text_dim, dim, num_heads, scale=scale)
        self.gate = nn.Parameter(torch.tensor(gate))

    def words(self, text: Text) -> Words:
        """Keys and values of the words."""
        return Words(*self.attention.keys_values(text.embeddings, text.mask), text.mask)

    def attend(
        self,
        x: Float[Tensor, "batch height width dim"],
        words: Words,
        *,
        top_m: int | None = None,
        return_map: bool = False,
    ) -> tuple[
        Float[Tensor, "batch height width dim"],
        Float[Tensor, "batch heads height width words"] | None,
    ]:
        """What every pixel hears (zero where there is no word), and its attention if asked."""
        grid = x.shape[1:3]
        heard, attention = self.attention.attend(
            x.flatten(1, 2), *words, top_m=top_m, return_map=return_map
        )
        maps = None if attention is None else attention.unflatten(2, grid)
        return heard.unflatten(1, grid), maps


class EncoderAlignment(SemanticAlignment):
    """SAM on the attention branch of encoder blocks, gated."""

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        super().__init__(dim, text_dim, num_heads, config.encoder, _FIRST_GATE, legacy=False)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        branch: Float[Tensor, "batch height width dim"],
        words: Words,
        layer_scale: Float[Tensor, " dim"] | None = None,
    ) -> Float[Tensor, "batch height width dim"]:
        """The branch, scaled, with what the words add to it."""
        heard, _ = self.attend(self.norm(branch), words)
        return _scaled(branch, layer_scale) + self.gate * heard


class LegacyEncoderAlignment(SemanticAlignment):
    """SAM on the attention branch of encoder blocks, as the original has it (`forward_ssa`)."""

    gate_scale: Tensor

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        super().__init__(dim, text_dim, num_heads, config.encoder, _LEGACY_GAMMA, legacy=True)
        self.register_buffer("gate_scale", torch.tensor(1.0))

    def forward(
        self,
        branch: Float[Tensor, "batch height width dim"],
        words: Words,
        layer_scale: Float[Tensor, " dim"] | None = None,
    ) -> Float[Tensor, "batch height width dim"]:
        """The branch with what the words add to it, scaled."""
        heard, _ = self.attend(branch, words)
        return _scaled(branch + self.gate * self.gate_scale * heard, layer_scale)


class DecoderAlignment(SemanticAlignment):
    """SAM on one level of the head, gated."""

    lr_multiplier = {**SemanticAlignment.lr_multiplier, "gate_ffn": _FAST}  # noqa: RUF012

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        super().__init__(dim, text_dim, num_heads, config.decoder, _FIRST_GATE, legacy=False)
        self.top_m = config.decoder.top_m
        self.gate_ffn = nn.Parameter(torch.tensor(_FIRST_GATE))
        self.norm_attention = nn.LayerNorm(dim)
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = WordFeedForward(dim)

    def forward(
        self,
        x: Float[Tensor, "batch height width dim"],
        words: Words,
        *,
        return_map: bool = False,
    ) -> tuple[
        Float[Tensor, "batch height width dim"],
        Float[Tensor, "batch heads height width words"] | None,
    ]:
        """The level guided by the words, and where each pixel looked if asked."""
        heard, maps = self.attend(
            self.norm_attention(x), words, top_m=self.top_m, return_map=return_map
        )
        y = x + self.gate * heard
        refined = self.gate_ffn * self.ffn(self.norm_ffn(y))
        return y + torch.where(_has_word(words), refined, 0.0), maps


class LegacyDecoderAlignment(SemanticAlignment):
    """SAM on one level of the head, as the original has it."""

    gate_scale: Tensor

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        super().__init__(dim, text_dim, num_heads, config.decoder, _LEGACY_ALPHA, legacy=True)
        self.top_m = config.decoder.top_m
        self.norm_attention = nn.LayerNorm(dim)
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = WordFeedForward(dim)
        # The original carries it in its weights and does not use it in the decoder.
        self.register_buffer("gate_scale", torch.tensor(1.0))

    def forward(
        self,
        x: Float[Tensor, "batch height width dim"],
        words: Words,
        *,
        return_map: bool = False,
    ) -> tuple[
        Float[Tensor, "batch height width dim"],
        Float[Tensor, "batch heads height width words"] | None,
    ]:
        """The level guided by the words, and where each pixel looked if asked."""
        z = self.norm_attention(x)
        heard, maps = self.attend(z, words, top_m=self.top_m, return_map=return_map)
        # A sample without a word hears the output bias, unless no sample has one.
        silent = words.mask.any() & ~_has_word(words)
        heard = torch.where(silent, self.attention.out_proj.bias.to(heard.dtype), heard)
        y = self.norm_ffn(z + self.gate * heard)
        return y + self.ffn(y), maps


class WordFeedForward(nn.Module):
    """Linear to four times the width, exact GELU, linear back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 4 * dim)
        self.contract = nn.Linear(4 * dim, dim)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Each pixel by itself."""
        return self.contract(F.gelu(self.expand(x)))


AnyEncoderAlignment = EncoderAlignment | LegacyEncoderAlignment
AnyDecoderAlignment = DecoderAlignment | LegacyDecoderAlignment


def encoder_alignment(
    dim: int, text_dim: int, num_heads: int, config: SamConfig
) -> AnyEncoderAlignment:
    """The module of the form that the config asks for."""
    form = LegacyEncoderAlignment if config.form == "legacy" else EncoderAlignment
    return form(dim, text_dim, num_heads, config)


def decoder_alignment(
    dim: int, text_dim: int, num_heads: int, config: SamConfig
) -> AnyDecoderAlignment:
    """The module of the form that the config asks for."""
    form = LegacyDecoderAlignment if config.form == "legacy" else DecoderAlignment
    return form(dim, text_dim, num_heads, config)


def _has_word(words: Words) -> Tensor:
    return words.mask.any(-1)[:, None, None, None]  # (batch, 1, 1, 1)


def _scaled(branch: Tensor, layer_scale: Tensor | None) -> Tensor:
    return branch if layer_scale is None else layer_scale * branch
