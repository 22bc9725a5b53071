"""One block of DFormerv2: position, attention and feed-forward, all residual.

`x += DW3(x)`; `x += DP(g1 GSA(LN1(x)))`; `x += DP(g2 FFN(LN2(x)))`, with LayerScale g or none and
drop path DP. Words may join the attention branch (`alignment`).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.model.alignment import EncoderAlignment, Words
from eligo.pixels.model.attention import GeometryAttention
from eligo.pixels.model.geometry import Geometry
from eligo.pixels.model.layers import Depthwise, DropPath, TokenLinear, TokenNorm, Tokens


class FeedForward(nn.Module):
    """`W2 (u + DW3(u))` with `u = GELU(W1 x)`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand = TokenLinear(dim, hidden)
        self.depthwise = Depthwise(hidden, 3)
        self.contract = TokenLinear(hidden, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Transform each token with its neighbours."""
        hidden = F.gelu(self.expand(x))
        return self.contract(self.depthwise(hidden, onto=hidden))


class Block(nn.Module):
    """Position, attention (with words), feed-forward; all residual."""

    lr_multiplier = {"prior_weights": 10.0}  # noqa: RUF012

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ffn_dim: int,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.position = Depthwise(dim, 3)
        self.norm_attention = TokenNorm(dim, eps=1e-6)
        self.attention = GeometryAttention(dim, num_heads)
        self.norm_ffn = TokenNorm(dim, eps=1e-6)
        self.ffn = FeedForward(dim, ffn_dim)
        self.drop_path = DropPath(drop_path)
        self.prior_weights = nn.Parameter(torch.ones(2))
        scales = (None, None)
        if layer_scale is not None:
            scales = (nn.Parameter(torch.full((dim,), layer_scale)) for _ in range(2))
        self.scale_attention, self.scale_ffn = scales

    def forward(
        self,
        x: Tokens,
        geometry: Geometry,
        align: EncoderAlignment | None = None,
        words: Words | None = None,
    ) -> Tokens:
        """Run the block; `align` adds `words` to the attention branch."""
        x = self.position(x, onto=x)
        branch = self.attention(self.norm_attention(x), geometry, self.prior_weights)
        if align is not None and words is not None:
            x = x + self.drop_path(align(branch, words, self.scale_attention))
        else:
            x = _add(x, self.drop_path(branch), self.scale_attention)
        return _add(x, self.drop_path(self.ffn(self.norm_ffn(x))), self.scale_ffn)


def _add(x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    return x + branch if scale is None else torch.addcmul(x, branch, scale)
