"""Triton kernels for inference: depthwise filters, norms, rotary embedding and attention biases.

For these shapes torch leaves most of a GPU's memory bandwidth unused and takes several passes. Here
every number is read once and written once, in the layout that attention needs. Sums are in float32.
There are no gradients: `layers.use_kernels` chooses between these kernels and torch. With
`TRITON_INTERPRET=1` they run on a CPU, for tests.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from eligo.pixels.model.layers import Tokens

_FILTER_TILES = {4: (32, 32, 4), 2: (16, 32, 2)}  # bytes of a number: columns, channels, warps
_ROTARY_TILE = (32, 64)  # tokens, channels
_BIAS_TILE = 32  # queries and keys
_NORM_TILE = 2048  # numbers
_BIAS_STEP = 16  # attention copies a bias whose rows are not aligned to this


@triton.jit
@no_type_check  # Triton's language
def _depthwise(
    x,  # (B, H, W, C)
    weight,  # (C, 1, K, K)
    bias,  # (C,)
    onto,  # as x
    out,  # as x
    height,
    width,
    num_channels,
    K: tl.constexpr,
    HAS_ONTO: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # of all images
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    valid = channel < num_channels
    total = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    total += tl.load(bias + channel, mask=valid, other=0.0).to(tl.float32)[None, :]
    for dy in tl.static_range(K):
        y = row % height + (dy - K // 2) + 0 * column  # a vector: the interpreter needs one
        for dx in tl.static_range(K):
            shifted = column + (dx - K // 2)
            inside = (y >= 0) & (y < height) & (shifted >= 0) & (shifted < width)
            position = (row + (dy - K // 2)) * width + shifted
            mask = inside[:, None] & valid[None, :]
            value = tl.load(x + position[:, None] * num_channels + channel[None, :], mask, 0.0)
            tap = tl.load(weight + channel * (K * K) + (dy * K + dx), mask=valid, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    position = (row * width + column)[:, None] * num_channels + channel[None, :]
    kept = (column < width)[:, None] & valid[None, :]
    if HAS_ONTO:
        total += tl.load(onto + position, kept, 0.0).to(tl.float32)
    tl.store(out + position, total.to(out.dtype.element_ty), kept)


def depthwise(
    x: Tokens,
    weight: Float[Tensor, "dim 1 kernel kernel"],
    bias: Float[Tensor, " dim"],
    onto: Tokens | None = None,
) -> Tokens:
    """Filter every channel, zero-padded; the result is added to `onto`."""
    batch, height, width, dim = x.shape
    x = x.contiguous()
    base = x if onto is None else onto.contiguous()
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, base.dtype), device=x.device)
    columns, channels, warps = _FILTER_TILES[x.element_size()]
    launch: Any = _depthwise[(batch * height, -(-width // columns), -(-dim // channels))]
    launch(
        x, weight.contiguous(), bias.contiguous(), base, out, height, width, dim,
        K=weight.shape[-1], HAS_ONTO=onto is not None, COLUMNS=columns, CHANNELS=channels,
        num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
@no_type_check
def _rotated(
    qkv,  # (B, H, W, 3, C): q, k, v
    cos_sin,  # (H, W, D): cosine and sine of every pair
    out,  # (3, B, H, W, C)
    num_tokens,  # of all images
    per_image,
    num_channels,
    step,  # of `out`, from part to part
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (token < num_tokens)[:, None] & (channel < num_channels)[None, :]
    tile = tl.load(cos_sin + (token % per_image)[:, None] * D + (channel % D)[None, :], inside, 0.0)
    cos, sin = tl.split(tile.reshape(TOKENS, CHANNELS // 2, 2))
    source = qkv + token[:, None] * (3 * num_channels) + channel[None, :]
    position = out + token[:, None] * num_channels + channel[None, :]
    for part in tl.static_range(3):  # pointers advance: an offset could exceed 32 bits
        value = tl.load(source + part * num_channels, inside, 0.0)
        if part < 2:
            a, b = tl.split(value.to(tl.float32).reshape(TOKENS, CHANNELS // 2, 2))
            pairs = tl.join(a * cos - b * sin, b * cos + a * sin)
            value = pairs.reshape(TOKENS, CHANNELS).to(out.dtype.element_ty)
        tl.store(position, value, inside)
        position += step


def rotated(
    qkv: Float[Tensor, "batch height width three_dims"],
    cos_sin: Float[Tensor, "height width 1 pairs 2"],
) -> tuple[Float[Tensor, "batch height width heads head_dim"], ...]:
    """Return rotated queries, rotated keys, and values, each contiguous."""
    batch, height, width, dims = qkv.shape
    dim, head_dim = dims // 3, 2 * cos_sin.shape[-2]
    shape = (3, batch, height, width, dim // head_dim, head_dim)
    out = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
    num_tokens, (tokens, channels) = batch * height * width, _ROTARY_TILE
    launch: Any = _rotated[(-(-num_tokens // tokens), -(-dim // channels))]
    launch(
        qkv.contiguous(), cos_sin, out, num_tokens, height * width, dim, num_tokens * dim,
        D=head_dim, TOKENS=tokens, CHANNELS=channels,
    )  # fmt: skip
    return out.unbind()


@triton.jit
@no_type_check
def _biases(
    grid,  # (T, T)
    gaps,  # (lines, T, T)
    along_grid,  # (heads,)
    along_depth,  # (heads,)
    out,  # (lines, heads, T, step)
    num_heads,
    num_tokens,
    step,  # of `out`, from query to query
    head_step,  # from head to head; may exceed 32 bits
    TILE: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    query = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    key = tl.program_id(2) * TILE + tl.arange(0, TILE)
    pair = query[:, None] * num_tokens + key[None, :]
    inside = (query < num_tokens)[:, None] & (key < num_tokens)[None, :]
    distance = tl.load(grid + pair, inside, 0.0)
    gap = tl.load(gaps + line * num_tokens * num_tokens + pair, inside, 0.0)
    position = out + line * num_heads * head_step + query[:, None] * step + key[None, :]
    kept = (query < num_tokens)[:, None] & (key < step)[None, :]  # also the padding: wide stores
    for head in range(num_heads):
        bias = tl.load(along_grid + head) * distance + tl.load(along_depth + head) * gap
        tl.store(position, bias.to(out.dtype.element_ty), kept)
        position += head_step


def biases(
    grid: Float[Tensor, "tokens tokens"],
    gaps: Float[Tensor, "batch lines 1 tokens tokens"],
    rates: tuple[Float[Tensor, "heads 1 1"], Float[Tensor, "heads 1 1"]],
    dtype: torch.dtype,
) -> Float[Tensor, "batch lines heads tokens tokens"]:
    """Return `b_h (w0 grid + w1 gaps)`, with padded rows so that attention need not copy it."""
    batch, lines, _, tokens, _ = gaps.shape
    heads, step = rates[0].shape[0], -(-tokens // _BIAS_STEP) * _BIAS_STEP
    out = torch.empty((batch, lines, heads, tokens, step), dtype=dtype, device=gaps.device)
    tiles = -(-tokens // _BIAS_TILE)
    launch: Any = _biases[(batch * lines, tiles, tiles)]
    launch(
        grid, gaps.contiguous(), *rates, out, heads, tokens, step, tokens * step, TILE=_BIAS_TILE
    )
    return out[..., :tokens]


@triton.jit
@no_type_check
def _norm(
    x,  # (N, C)
    weight,  # (C,)
    bias,  # (C,)
    out,  # (N, C)
    num_tokens,
    num_channels,
    eps,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, CHANNELS)
    valid = channel < num_channels
    inside = (token < num_tokens)[:, None] & valid[None, :]
    position = token[:, None] * num_channels + channel[None, :]
    value = tl.load(x + position, inside, 0.0).to(tl.float32)
    mean = tl.sum(value, 1) / num_channels
    centred = tl.where(valid[None, :], value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / num_channels + eps)
    gain = tl.load(weight + channel, valid, 0.0).to(tl.float32)
    shift = tl.load(bias + channel, valid, 0.0).to(tl.float32)
    normed = centred * scale[:, None] * gain[None, :] + shift[None, :]
    tl.store(out + position, normed.to(out.dtype.element_ty), inside)


def norm(
    x: Float[Tensor, "*tokens dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    dtype: torch.dtype,
) -> Float[Tensor, "*tokens dim"]:
    """Return the LayerNorm in `dtype`."""
    dim = x.shape[-1]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    num_tokens, channels = x.numel() // dim, triton.next_power_of_2(dim)
    tokens = max(1, _NORM_TILE // channels)
    launch: Any = _norm[(-(-num_tokens // tokens),)]
    launch(
        x.contiguous(), weight, bias, out, num_tokens, dim, eps, TOKENS=tokens, CHANNELS=channels
    )
    return out
