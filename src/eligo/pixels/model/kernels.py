"""Triton kernels for inference: products, filters, norms, rotary embedding, geometry attention.

For these shapes torch leaves most of a GPU's memory bandwidth unused and takes several passes. Here
every number is read once and written once, and attention computes the geometry prior from the depth
of its tokens instead of reading it. Sums are in float32; so are products of float32 numbers (three
TF32 products, as in torch's fused attention), unless torch allows TF32 for them.
There are no gradients: `layers.use_kernels` chooses between these kernels and torch. With
`TRITON_INTERPRET=1` they run on a CPU, for tests.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.pixels.model.layers import Tokens, products_in_tf32

_LOG2_E = 1.4426950408889634
_FILTER_TILES = {4: (32, 32, 4), 2: (16, 32, 2)}  # bytes of a number: columns, channels, warps
_ROTARY_TILE = (32, 64)  # tokens, channels
_ATTENTION_TILE = (32, 32, 2)  # queries, keys, warps
_LINEAR_TILES = ((64, 64, 64, 4), (64, 32, 32, 4), (32, 32, 32, 2))
"""Rows, columns, steps, warps: the first that fills the GPU."""
_LINEAR_PROGRAMS = 120
_NORM_TILE = 2048  # numbers


@triton.jit
@no_type_check  # Triton's language
def _linear(
    x,  # (N, I)
    weight,  # (O, I)
    bias,  # (O,), unused without HAS_BIAS
    out,  # (N, O)
    num_tokens,
    in_dim,
    out_dim,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    num_blocks = tl.cdiv(out_dim, COLUMNS)
    token = (tl.program_id(0) // num_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % num_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEPS)
    left = x + token[:, None] * in_dim + step[None, :]
    right = weight + column[None, :] * in_dim + step[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, in_dim, STEPS):
        given = step < in_dim - start
        rows = tl.load(left, (token < num_tokens)[:, None] & given[None, :], 0.0)
        columns = tl.load(right, (column < out_dim)[None, :] & given[:, None], 0.0)
        total = tl.dot(rows, columns, total, input_precision=PRECISION)
        left += STEPS
        right += STEPS
    if HAS_BIAS:
        total += tl.load(bias + column, column < out_dim, 0.0).to(tl.float32)[None, :]
    kept = (token < num_tokens)[:, None] & (column < out_dim)[None, :]
    position = token[:, None] * out_dim + column[None, :]
    tl.store(out + position, total.to(out.dtype.element_ty), kept)


def linear(
    x: Float[Tensor, "*tokens in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*tokens out_dim"]:
    """Return `x W' + b`, all of one type."""
    out_dim, in_dim = weight.shape
    out = torch.empty((*x.shape[:-1], out_dim), dtype=x.dtype, device=x.device)
    num_tokens = x.numel() // in_dim
    sizes = [(-(-num_tokens // tile[0]) * -(-out_dim // tile[1]), tile) for tile in _LINEAR_TILES]
    filling = [size for size in sizes if size[0] >= _LINEAR_PROGRAMS]
    programs, (rows, columns, steps, warps) = (filling or sizes[-1:])[0]
    launch: Any = _linear[(programs,)]
    launch(
        x.contiguous(), weight.contiguous(), weight if bias is None else bias, out,
        num_tokens, in_dim, out_dim, HAS_BIAS=bias is not None,
        PRECISION="tf32" if products_in_tf32() else "tf32x3",
        ROWS=rows, COLUMNS=columns, STEPS=steps, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
@no_type_check
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
) -> Float[Tensor, "3 batch height width heads head_dim"]:
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
    return out


@triton.jit
@no_type_check
def _attend(
    q,  # (B, H, W, heads, D), and so are k, v and out
    k,
    v,
    z,  # (B, H, W), unused without HAS_DEPTH
    valid,  # (B, H, W), unused without HAS_MASK
    decay,  # (heads,)
    prior,  # (2,): w0 and w1
    out,
    per_image,  # tokens
    num_lines,  # of an image
    num_tokens,  # of a line
    line_step,  # tokens from line to line
    token_step,  # tokens from one token of a line to the next
    width,  # of the grid, if a line is the whole image
    num_heads,
    SCALE: tl.constexpr,  # of the logits, to base 2; an argument would be float64 when compiled
    D: tl.constexpr,
    FULL: tl.constexpr,
    HAS_DEPTH: tl.constexpr,
    HAS_MASK: tl.constexpr,
    PRECISION: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    num_blocks = tl.cdiv(num_tokens, QUERIES)
    line = tl.program_id(0) // num_blocks
    head = tl.program_id(1)
    step = num_heads * D
    tokens = (line // num_lines).to(tl.int64) * per_image  # in front of this image
    first = (line % num_lines) * line_step
    q += tokens * step + head * D
    k += tokens * step + head * D
    v += tokens * step + head * D
    out += tokens * step + head * D
    z += tokens
    valid += tokens
    channel = tl.arange(0, CHANNELS)
    query = (tl.program_id(0) % num_blocks) * QUERIES + tl.arange(0, QUERIES)
    query_at = first + query * token_step
    kept = (query < num_tokens)[:, None] & (channel < D)[None, :]
    queries = tl.load(q + query_at[:, None] * step + channel[None, :], kept, 0.0)
    rate = tl.load(decay + head) * 1.4426950408889634  # powers of 2 are faster than of e
    along_grid = rate * tl.load(prior)
    along_depth = rate * tl.load(prior + 1)
    if HAS_DEPTH:
        query_z = tl.load(z + query_at, query < num_tokens, 0.0)
    if HAS_MASK:
        query_valid = tl.load(valid + query_at, query < num_tokens, 0) != 0
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, CHANNELS), tl.float32)
    for start in range(0, num_tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < num_tokens
        key_at = first + key * token_step
        given = (channel < D)[:, None] & inside[None, :]
        keys = tl.load(k + key_at[None, :] * step + channel[:, None], given, 0.0)
        scores = tl.dot(queries, keys, input_precision=PRECISION) * SCALE
        if FULL:
            rows = tl.abs((query // width)[:, None] - (key // width)[None, :])
            distance = rows + tl.abs((query % width)[:, None] - (key % width)[None, :])
        else:
            distance = tl.abs(query[:, None] - key[None, :])
        scores += along_grid * distance.to(tl.float32)
        if HAS_DEPTH:
            gap = tl.abs(query_z[:, None] - tl.load(z + key_at, inside, 0.0)[None, :])
            if HAS_MASK:
                key_valid = tl.load(valid + key_at, inside, 0) != 0
                gap = tl.where(query_valid[:, None] & key_valid[None, :], gap, 0.0)
            scores += along_depth * gap
        scores = tl.where(inside[None, :], scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - peak[:, None])
        fade = tl.exp2(highest - peak)
        given = inside[:, None] & (channel < D)[None, :]
        values = tl.load(v + key_at[:, None] * step + channel[None, :], given, 0.0)
        total = total * fade + tl.sum(weights, 1)
        mixed *= fade[:, None]
        mixed += tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
        highest = peak
    mixed = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + query_at[:, None] * step + channel[None, :], mixed, kept)


def attend(
    query: Float[Tensor, "batch height width heads head_dim"],
    key: Float[Tensor, "batch height width heads head_dim"],
    value: Float[Tensor, "batch height width heads head_dim"],
    line: str,
    decay: Float[Tensor, " heads"],
    prior_weights: Float[Tensor, "2"],
    z: Float[Tensor, "batch 1 height width"] | None = None,
    valid: Bool[Tensor, "batch 1 height width"] | None = None,
) -> Float[Tensor, "batch height width heads head_dim"]:
    """Attend within `rows`, `columns` or `all` tokens, biased by `b_h (w0 grid + w1 depth)`."""
    batch, height, width, heads, head_dim = query.shape
    tokens = height * width
    lines, length, line_step, token_step = {
        "rows": (height, width, width, 1),
        "columns": (width, height, 1, width),
        "all": (1, tokens, 0, 1),
    }[line]
    queries, keys, warps = _ATTENTION_TILE
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    launch: Any = _attend[(batch * lines * -(-length // queries), heads)]
    launch(
        query.contiguous(), key.contiguous(), value.contiguous(),
        query if z is None else z.contiguous(),
        query if valid is None else valid.contiguous(),
        decay, prior_weights, out, tokens, lines, length, line_step, token_step, width, heads,
        SCALE=head_dim**-0.5 * _LOG2_E, D=head_dim, FULL=line == "all",
        HAS_DEPTH=z is not None, HAS_MASK=valid is not None,
        PRECISION="tf32" if products_in_tf32() else "tf32x3",
        QUERIES=queries, KEYS=keys, CHANNELS=max(16, triton.next_power_of_2(head_dim)),
        num_warps=warps,
    )  # fmt: skip
    return out


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
