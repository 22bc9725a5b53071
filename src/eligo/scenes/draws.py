"""Randomness as a pure function: draw(key, stream) -> integer, the same on every device.

A scene's key is a 64-bit hash of (seed, split, index). Everything random about the scene is a hash
of its key and the name of the draw (SplitMix64's finaliser: Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014). Integer arithmetic only, so CPU and GPU agree exactly, any
scene can be made alone, and the order in which scenes are made does not matter.
"""

import zlib
from functools import cache

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """Return the same 64 bits as a signed integer (torch has no uint64 arithmetic)."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(bits: Int64[Tensor, "*shape"], by: int) -> Int64[Tensor, "*shape"]:
    return (bits >> by) & ((1 << (64 - by)) - 1)  # torch shifts in the sign; this clears it


def mix(bits: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """SplitMix64's finaliser: every input bit changes every output bit with probability 1/2."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        bits = (bits ^ _shift_right(bits, shift)) * _signed(multiplier)
    return bits ^ _shift_right(bits, _SHIFTS[2])


@cache
def stream_offset(stream: str) -> int:
    """Return the offset of a named stream; names keep draws independent of code order."""
    return _signed(zlib.crc32(stream.encode()) * _GOLDEN)


def scene_keys(
    seed: int, split: int, indices: Int64[Tensor, " scenes"]
) -> Int64[Tensor, " scenes"]:
    """Return one 64-bit key per scene, which depends on the split."""
    start = mix(torch.tensor(_signed((seed * 4 + split + 1) * _GOLDEN), dtype=torch.int64))
    return mix(indices * _signed(_GOLDEN) + start.item())


def subkeys(
    key: Int64[Tensor, "*batch"], stream: str, count: int
) -> Int64[Tensor, "*batch {count}"]:
    """`count` independent keys out of each key, for the named stream."""
    slots = torch.arange(1, count + 1, device=key.device) * _signed(_GOLDEN)
    return mix(mix(key + stream_offset(stream))[..., None] + slots)


def integers(
    key: Int64[Tensor, "*batch"], stream: str, count: int, below: int
) -> Int64[Tensor, "*batch {count}"]:
    """`count` integers in [0, below) for each key (top 31 bits, fixed-point multiplication)."""
    return (_shift_right(subkeys(key, stream, count), 33) * below) >> 31


def integer(key: Int64[Tensor, "*batch"], stream: str, below: int) -> Int64[Tensor, "*batch"]:
    """One integer in [0, below) for each key."""
    return integers(key, stream, 1, below)[..., 0]


def permutations(
    key: Int64[Tensor, "*batch"], stream: str, count: int
) -> Int64[Tensor, "*batch {count}"]:
    """A random order of `count` things for each key."""
    return subkeys(key, stream, count).argsort(dim=-1, stable=True)


def choose(
    key: Int64[Tensor, "*batch"], stream: str, allowed: Bool[Tensor, "*batch options"]
) -> tuple[Int64[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """A uniformly random allowed option per row, and whether the row had any (else option 0)."""
    priority = _shift_right(subkeys(key, stream, allowed.shape[-1]), 2) + 1
    best = torch.where(allowed, priority, 0).max(-1)
    found = best.values > 0
    # Devices break ties differently, as in a row of zeros.
    return best.indices.where(found, 0), found


def choose_weighted(
    key: Int64[Tensor, "*batch"], stream: str, weights: tuple[int, ...]
) -> Int64[Tensor, "*batch"]:
    """A random option per row, with the given integer weights."""
    edges = torch.tensor(weights, device=key.device).cumsum(0)
    return torch.bucketize(integer(key, stream, sum(weights)), edges, right=True)
