"""The geometry prior and the rotary tables of DFormerv2.

Token (i, j) of a stage's grid has depth z, resized once from the image. A head h of n decays at the
fixed rate `b_h = ln(1 - 2^-(2 + r h / n))`, and a block weighs two distances by its learned
w0, w1: `bias = b_h (w0 |grid distance| + w1 |z - z'|)`, along rows, columns or between all tokens.

Departures: the paper multiplies the decay after the softmax and average-pools depth; the code that
trained the weights adds it before and resizes bilinearly, and so do we. Pixels of unknown depth
(`depth_mask`) have no part in z, and a token without depth is at depth distance 0 of all others.
Distances are computed once per stage, without heads; each block adds one fused multiply-add. The
attention kernel (`kernels.attend`) needs none of them, and computes the bias from z.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


class Distances(NamedTuple):
    """Distances between the tokens of every line: in the grid, and in depth (None: unknown)."""

    grid: Tensor  # (tokens, tokens)
    depth: Tensor | None  # (batch, lines, 1, tokens, tokens)

    def bias(
        self,
        rates: tuple[Float[Tensor, "heads 1 1"], Float[Tensor, "heads 1 1"]],
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "batch lines heads tokens tokens"]:
        """`b_h (w0 grid + w1 depth)`; batch and lines are 1 if depth is unknown."""
        along_grid, along_depth = rates
        grid = along_grid * self.grid
        if self.depth is None:
            return grid[None, None].to(dtype)
        return torch.addcmul(grid, self.depth, along_depth).to(dtype)


class Depth(NamedTuple):
    """Depth on a grid of tokens or pixels, and where it is known (None: everywhere)."""

    z: Tensor  # (batch, 1, height, width)
    valid: Tensor | None  # (batch, 1, height, width), bool


class Tables(NamedTuple):
    """What a stage's geometry has in common for all images of a size."""

    decay: Tensor  # (heads,)
    cos_sin: Tensor  # (height, width, 1, pairs, 2)


@dataclass
class Geometry:
    """The geometry that all blocks of a stage share."""

    size: tuple[int, int]
    full: bool
    """All tokens are one line; otherwise lines are rows, then columns."""
    depth: Depth | None
    """At the tokens."""
    tables: Tables
    _lines: tuple[Distances, ...] = ()

    def lines(self) -> tuple[Distances, ...]:
        """Return the distances within rows and within columns, or between all tokens."""
        if not self._lines:
            (height, width), device = self.size, self.tables.decay.device
            if self.full:
                self._lines = (full_distances(height, width, self.depth, device),)
            else:
                rows = row_distances(width, self.depth, device)
                self._lines = (rows, column_distances(height, self.depth, device))
        return self._lines


def known_depth(
    depth: Float[Tensor, "batch depth_channels height width"],
    depth_mask: Bool[Tensor, "batch 1 height width"] | None,
) -> Depth:
    """Return channel 0, with 0 where it is unknown (a NaN there would spread)."""
    z = depth[:, :1]
    return Depth(z if depth_mask is None else torch.where(depth_mask, z, 0.0), depth_mask)


def resize_depth(depth: Depth, size: tuple[int, int]) -> Depth:
    """Bilinear, without antialiasing; the mean of known depths only, valid where most is known."""
    z = _resize(depth.z.float(), size)
    if depth.valid is None:
        return Depth(z, None)
    share = _resize(depth.valid.float(), size)
    return Depth(z / share.clamp_min(1e-6), share >= 0.5)


def head_decay(
    num_heads: int, spread: float, device: torch.device | None = None
) -> Float[Tensor, " heads"]:
    """`b_h = ln(1 - 2^-(2 + r h / n))`: negative, nearest to 0 in the last head."""
    heads = torch.arange(num_heads, dtype=torch.float32, device=device)
    return torch.log(1 - 2 ** (-2 - spread * heads / num_heads))


def rotary_frequencies(
    head_dim: int, device: torch.device | None = None
) -> Float[Tensor, " head_dim"]:
    """`10000^(-m / (d/2 - 1))`, each twice; in float32, with the rounding of the original."""
    frequencies = 1.0 / (10000 ** torch.linspace(0, 1, head_dim // 2, device=device))
    return frequencies.repeat_interleave(2)


def rotary_tables(
    height: int, width: int, frequencies: Float[Tensor, " head_dim"]
) -> tuple[Float[Tensor, "height width head_dim"], Float[Tensor, "height width head_dim"]]:
    """Return sine and cosine of (i W + j) times the frequencies, in raster order."""
    index = torch.arange(height * width, device=frequencies.device)
    angles = (index[:, None] * frequencies).unflatten(0, (height, width))
    return angles.sin(), angles.cos()


def pair_cos_sin(
    sin: Float[Tensor, "height width head_dim"], cos: Float[Tensor, "height width head_dim"]
) -> Float[Tensor, "height width 1 pairs 2"]:
    """Return (cos, sin) of every pair of channels, the same for all heads."""
    return torch.stack((cos[..., ::2], sin[..., ::2]), -1).unsqueeze(2)


def rotate(
    x: Float[Tensor, "batch height width heads head_dim"],
    cos_sin: Float[Tensor, "height width 1 pairs 2"],
) -> Float[Tensor, "batch height width heads head_dim"]:
    """Rotate every pair (a, b) by its angle: (a cos - b sin, b cos + a sin).

    In eager mode as one complex product; compilers and exporters, which do not support complex
    numbers, get the explicit formula and fuse it.
    """
    pairs = x.float().view(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():
        (a, b), (cos, sin) = pairs.unbind(-1), cos_sin.unbind(-1)
        rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(cos_sin))
    return rotated.view(x.shape).to(x.dtype)


def prior_rates(
    decay: Float[Tensor, " heads"], weights: Float[Tensor, "2"]
) -> tuple[Float[Tensor, "heads 1 1"], Float[Tensor, "heads 1 1"]]:
    """Return `b_h w0` and `b_h w1` of a block: the decay of each head with distance and depth."""
    along_grid, along_depth = (weights[:, None, None, None] * decay[:, None, None]).unbind()
    return along_grid, along_depth


def row_distances(width: int, depth: Depth | None, device: torch.device) -> Distances:
    """Within every row: (width, width) and (batch, height, 1, width, width)."""
    return Distances(_steps(width, device), _gaps(depth, lambda z: z.squeeze(1)))


def column_distances(height: int, depth: Depth | None, device: torch.device) -> Distances:
    """Within every column: (height, height) and (batch, width, 1, height, height)."""
    return Distances(_steps(height, device), _gaps(depth, lambda z: z.squeeze(1).mT))


def full_distances(height: int, width: int, depth: Depth | None, device: torch.device) -> Distances:
    """Between all tokens, in raster order, as one line."""
    rows, columns = _steps(height, device), _steps(width, device)
    grid = rows[:, None, :, None] + columns[None, :, None, :]
    return Distances(grid.reshape(height * width, -1), _gaps(depth, lambda z: z.flatten(2)))


def stage_tables(
    size: tuple[int, int], *, num_heads: int, head_dim: int, spread: float, device: torch.device
) -> Tables:
    """Return the tables of a stage with this grid."""
    sin, cos = rotary_tables(*size, rotary_frequencies(head_dim, device))
    return Tables(head_decay(num_heads, spread, device), pair_cos_sin(sin, cos))


def stage_geometry(
    size: tuple[int, int], depth: Depth | None, tables: Tables, *, full: bool
) -> Geometry:
    """Return the geometry of a stage with this grid; `depth` has the size of the image."""
    return Geometry(size, full, None if depth is None else resize_depth(depth, size), tables)


def _steps(count: int, device: torch.device) -> Tensor:
    index = torch.arange(count, dtype=torch.float32, device=device)
    return (index[:, None] - index).abs()


def _gaps(depth: Depth | None, lines: Callable[[Tensor], Tensor]) -> Tensor | None:
    """|z - z'| within the lines that `lines` returns for a map; 0 where either is unknown."""
    if depth is None:
        return None
    z = lines(depth.z).unsqueeze(2).contiguous()  # else all biases inherit a transposed layout
    gaps = (z.unsqueeze(-1) - z.unsqueeze(-2)).abs()
    if depth.valid is None:
        return gaps
    valid = lines(depth.valid).unsqueeze(2)
    return torch.where(valid.unsqueeze(-1) & valid.unsqueeze(-2), gaps, 0.0)


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(image, size=size, mode="bilinear", align_corners=False)
