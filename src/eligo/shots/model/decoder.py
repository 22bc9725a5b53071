"""V0: a causal decoder over the query and its picks, like Lever-LM (Yang et al. 2024).

Departure from Lever-LM: no vocabulary of training items. A pick is its embedding, and the next one
is the candidate with the best logit (V1's head), so any pool works. Positions are sinusoidal, so
there may be more steps than in training. Unit embeddings are small beside sinusoids: they are
multiplied by the square root of the width, as in Vaswani et al. (2017).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo import ops
from eligo.nn import CrossAttention
from eligo.shots.config import PointerSelectorV0Config
from eligo.shots.model.pointer import EncodedInputs, PointerSelector

_FFN_RATIO = 4
_LONGEST_WAVE = 10_000.0


class DecoderLayer(nn.Module):
    """Pre-norm: self-attention, attention to the candidates, GELU feed-forward."""

    def __init__(self, config: PointerSelectorV0Config) -> None:
        super().__init__()
        dim, heads = config.hidden_dim, config.num_heads
        self.self_norm, self.cross_norm, self.ffn_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.self_attention = CrossAttention(dim, dim, dim, heads)
        self.cross_attention = CrossAttention(dim, dim, dim, heads)
        self.ffn = nn.Sequential(
            nn.Linear(dim, _FFN_RATIO * dim), nn.GELU(), nn.Linear(_FFN_RATIO * dim, dim)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        keys: Float[Tensor, "batch heads candidates head_dim"],
        values: Float[Tensor, "batch heads candidates head_dim"],
        mask: Tensor,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Each token attends to those up to itself, and to all candidates."""
        tokens = tokens + self.dropout(self._attend_causally(self.self_norm(tokens)))
        attended, _ = self.cross_attention.attend(self.cross_norm(tokens), keys, values, mask)
        tokens = tokens + self.dropout(attended)
        return tokens + self.dropout(self.ffn(self.ffn_norm(tokens)))

    def _attend_causally(self, tokens: Tensor) -> Tensor:
        # Every token is a row with its own keys: there are few.
        num_tokens = tokens.shape[1]
        shared = (part.unsqueeze(1) for part in self.self_attention.keys_values(tokens))
        keys, values = (part.expand(-1, num_tokens, -1, -1, -1) for part in shared)
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=tokens.device).tril()
        attended, _ = self.self_attention.attend(
            tokens.unsqueeze(2), keys, values, causal.expand(len(tokens), -1, -1)
        )
        return attended.squeeze(2)


class PointerSelectorV0(PointerSelector):
    """An autoregressive decoder with a pointer head.

    >>> model = PointerSelectorV0()
    >>> sum(p.numel() for p in model.parameters())
    660480
    """

    config: PointerSelectorV0Config

    def __init__(self, config: PointerSelectorV0Config | None = None) -> None:
        config = config or PointerSelectorV0Config()
        super().__init__(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_dim)

    @property
    def is_static(self) -> bool:
        """False: scores depend on earlier picks."""
        return False

    def _memory(self, candidates: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        layers = (layer for layer in self.layers if isinstance(layer, DecoderLayer))
        longer = _rescaled(candidates)
        pairs = (layer.cross_attention.keys_values(longer, mask) for layer in layers)
        return tuple(part for pair in pairs for part in pair)

    def _states(self, inputs: EncodedInputs, picks: Tensor) -> Tensor:
        """All steps at once. Ignored steps are not tokens: each step reads the last real one."""
        real = picks >= 0
        order = ops.align_left(real)
        picked = ops.gather(inputs.candidates, ops.gather(picks, order).masked_fill(order < 0, -1))
        tokens = _rescaled(torch.cat([inputs.query.unsqueeze(1), picked], 1))
        tokens = tokens + _sinusoids(tokens.shape[1], tokens)
        memory = iter(inputs.memory)
        for layer in self.layers:
            tokens = layer(tokens, next(memory), next(memory), inputs.mask)
        last_real = torch.nn.functional.pad(real.cumsum(1), (1, 0))  # (batch, steps + 1)
        return ops.gather(self.norm(tokens), last_real)

    def _update(self, inputs: EncodedInputs, picks: Tensor, before: Tensor | None) -> Tensor:  # noqa: ARG002
        return self._states(inputs, picks)[:, -1]


def _rescaled(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """Scale about unit vectors to the length of a sinusoid."""
    return vectors * math.sqrt(vectors.shape[-1])


def _sinusoids(num_steps: int, like: Tensor) -> Float[Tensor, "steps dim"]:
    """Sinusoidal positions (Vaswani et al. 2017): sines in the first half, cosines in the rest."""
    dim = like.shape[-1]
    half = (dim + 1) // 2
    rates = torch.exp(torch.arange(half, device=like.device) * (-math.log(_LONGEST_WAVE) / half))
    angles = torch.arange(num_steps, device=like.device).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :dim].to(like.dtype)
