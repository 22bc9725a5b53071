"""Geometry self-attention (GSA) of DFormerv2: attention that decays with distance and depth.

`out = W_o (O + DW5(v))`. In the first three stages attention is decomposed: within rows, then
within columns, with the same q and k: `U = softmax(q k' / sqrt(d) + row bias) v`, `O = softmax(q k'
/ sqrt(d) + column bias) U`. The last stage attends over all tokens at once.

On a GPU, without gradients, one kernel computes bias and attention (`kernels.attend`). Otherwise it
is torch's SDPA, whose inputs are views: rows are its batch, and columns are merged with the heads.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.model.geometry import Geometry, prior_rates, rotate
from eligo.pixels.model.layers import Depthwise, TokenLinear, Tokens, kernel, use_kernels


class GeometryAttention(nn.Module):
    """Self-attention over a grid of tokens, biased by a `Geometry`."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = TokenLinear(dim, 3 * dim)
        self.local = Depthwise(dim, 5)
        self.output = TokenLinear(dim, dim)

    def forward(self, x: Tokens, geometry: Geometry, prior_weights: Float[Tensor, "2"]) -> Tokens:
        """Attend; `prior_weights` are w0 (grid) and w1 (depth) of the block."""
        query, key, value = self._project(x, geometry.tables.cos_sin)
        mixed = value
        if use_kernels(query, prior_weights):
            for line in ("all",) if geometry.full else ("rows", "columns"):
                mixed = kernel("attend")(
                    query, key, mixed, line, geometry.tables.decay, prior_weights,
                    *(geometry.depth or ()),
                )  # fmt: skip
        else:
            rates = prior_rates(geometry.tables.decay, prior_weights)
            attends = (_full,) if geometry.full else (_rows, _columns)
            for attend, distances in zip(attends, geometry.lines(), strict=True):
                mixed = attend(query, key, mixed, distances.bias(rates, query.dtype))
        return self.output(self.local(value.view(x.shape), onto=mixed.reshape(x.shape)))

    def _project(self, x: Tensor, cos_sin: Tensor) -> tuple[Tensor, ...]:
        """Rotated queries and keys, and values: each (batch, height, width, heads, head_dim)."""
        qkv = self.qkv(x)
        if use_kernels(qkv):
            return kernel("rotated")(qkv, cos_sin).unbind()
        by_head = qkv.view(*x.shape[:-1], 3, self.num_heads, -1)
        query, key, value = by_head.unbind(-3)
        return rotate(query, cos_sin), rotate(key, cos_sin), value.contiguous()


def _rows(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """`bias` (batch, height, heads, width, width); batch and height may be 1."""
    q, k, v = (part.flatten(0, 1).transpose(1, 2) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.flatten(0, 1))
    return mixed.transpose(1, 2).reshape(query.shape)


def _columns(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """`bias` (batch, width, heads, height, height); batch and width may be 1."""
    bias = bias.expand(-1, query.shape[2], -1, -1, -1).flatten(1, 2)
    q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return mixed.transpose(1, 2).reshape(query.shape)


def _full(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """`bias` (batch, 1, heads, tokens, tokens); batch may be 1."""
    q, k, v = (part.flatten(1, 2).transpose(1, 2) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.flatten(0, 1))
    return mixed.transpose(1, 2).reshape(query.shape)
