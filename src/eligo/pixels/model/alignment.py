"""The Semantic Alignment Module (SAM): every pixel attends to the words of its image.

`CrossAttention` and `SimilarityScale` compute CA. Two forms (`SamConfig.form`):

- `gated` (default, ours). With m = 1 where a sample has words, else 0:
  encoder `branch = g1 o + m gamma CA(LN(o), t)`, outside LayerScale (g1), whose 1e-6 would suppress
  the words; decoder `y = x + m alpha CA(LN1(x), t)`, `out = y + m beta FFN(LN2(y))`. The gates
  start at 1e-3 (at 0 the temperature's first gradient would be 0). Without words it is exactly the
  identity, sample by sample.
- `legacy`: the formulas of the original code, for its weights and for comparison:
  encoder `branch = g1 (o + gamma Wo Attn(o, t))`; decoder `z = LN1(x)`, `y = LN2(z + alpha Wo
  Attn(z, t))`, `out = y + FFN(y)`. There a decoder sample without words still gets norms, FFN and
  the output bias (but no bias if the whole batch has no word), and a learnable temperature is
  clamped to its initial value, so that it never changes.
"""

from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.nn import CrossAttention, SimilarityScale
from eligo.pixels.config import SamConfig, SideConfig
from eligo.pixels.model.layers import Tokens
from eligo.pixels.text.batch import Text

WordMaps: TypeAlias = Float[Tensor, "batch heads height width words"]
"""Attention of every head and pixel to every word."""
_GATE = 1e-3
_LEGACY_GAMMA, _LEGACY_ALPHA = 0.5, 0.1
_SCALAR_LR = 10.0  # learning-rate multiplier of scales and gates


class Words(NamedTuple):
    """Keys and values of an image's words, computed once for all blocks that share a module."""

    keys: Float[Tensor, "batch heads words head_dim"]
    values: Float[Tensor, "batch heads words head_dim"]
    mask: Bool[Tensor, "batch words"]


class SemanticAlignment(nn.Module):
    """Gated cross-attention of pixels to words; base class for encoder and decoder."""

    lr_multiplier = {"gate": _SCALAR_LR, "attention.scale.log_scale": _SCALAR_LR}  # noqa: RUF012

    gate_scale: Tensor | None

    def __init__(
        self, dim: int, text_dim: int, num_heads: int, side: SideConfig, gate: float, legacy: bool
    ) -> None:
        super().__init__()
        scale = SimilarityScale(
            side.similarity, learnable=side.learnable_temp, init=side.logit_init, legacy=legacy
        )
        self.attention = CrossAttention(dim, text_dim, dim, num_heads, scale=scale)
        self.gate = nn.Parameter(torch.tensor(gate))

    def words(self, text: Text) -> Words:
        """Return keys and values of the words."""
        return Words(*self.attention.keys_values(text.embeddings, text.mask), text.mask)

    def attend(
        self, x: Tokens, words: Words, *, top_m: int | None = None, return_map: bool = False
    ) -> tuple[Tokens, WordMaps | None]:
        """Return the attention output of every pixel (zero without words), and the weights."""
        grid = x.shape[1:3]
        output, attention = self.attention.attend(
            x.flatten(1, 2), *words, top_m=top_m, return_map=return_map
        )
        maps = None if attention is None else attention.unflatten(2, grid)
        return output.unflatten(1, grid), maps


class EncoderAlignment(SemanticAlignment):
    """SAM on the attention branch of encoder blocks (`forward_ssa` in the original)."""

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        legacy = config.form == "legacy"
        gate = _LEGACY_GAMMA if legacy else _GATE
        super().__init__(dim, text_dim, num_heads, config.encoder, gate, legacy)
        self.register_buffer("gate_scale", torch.tensor(1.0) if legacy else None)
        self.norm = None if legacy else nn.LayerNorm(dim)

    def forward(
        self, branch: Tokens, words: Words, layer_scale: Float[Tensor, " dim"] | None = None
    ) -> Tokens:
        """Return the scaled branch with the contribution of the words."""
        if self.norm is None:
            assert self.gate_scale is not None
            output, _ = self.attend(branch, words)
            return _scaled(branch + self.gate * self.gate_scale * output, layer_scale)
        output, _ = self.attend(self.norm(branch), words)
        return _scaled(branch, layer_scale) + self.gate * output


class DecoderAlignment(SemanticAlignment):
    """SAM on one level of the head."""

    def __init__(self, dim: int, text_dim: int, num_heads: int, config: SamConfig) -> None:
        legacy = config.form == "legacy"
        gate = _LEGACY_ALPHA if legacy else _GATE
        super().__init__(dim, text_dim, num_heads, config.decoder, gate, legacy)
        self.top_m = config.decoder.top_m
        self.gate_ffn = None
        if not legacy:
            self.gate_ffn = nn.Parameter(torch.tensor(_GATE))
            self.lr_multiplier = {**self.lr_multiplier, "gate_ffn": _SCALAR_LR}
        self.norm_attention = nn.LayerNorm(dim)
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = WordFeedForward(dim)
        # Part of the original's weights, though its decoder does not use it.
        self.register_buffer("gate_scale", torch.tensor(1.0) if legacy else None)

    def forward(
        self, x: Tokens, words: Words, *, return_map: bool = False
    ) -> tuple[Tokens, WordMaps | None]:
        """Return the level guided by the words, and the attention weights with `return_map`."""
        z = self.norm_attention(x)
        output, maps = self.attend(z, words, top_m=self.top_m, return_map=return_map)
        has_word = words.mask.any(-1)[:, None, None, None]  # (batch, 1, 1, 1)
        if self.gate_ffn is not None:
            y = x + self.gate * output
            refined = self.gate_ffn * self.ffn(self.norm_ffn(y))
            return y + torch.where(has_word, refined, 0.0), maps
        # A sample without words gets the output bias, unless no sample has words.
        only_bias = words.mask.any() & ~has_word
        output = torch.where(only_bias, self.attention.out_proj.bias.to(output.dtype), output)
        y = self.norm_ffn(z + self.gate * output)
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
        """Transform each pixel by itself."""
        return self.contract(F.gelu(self.expand(x)))


def _scaled(branch: Tensor, layer_scale: Tensor | None) -> Tensor:
    return branch if layer_scale is None else layer_scale * branch
