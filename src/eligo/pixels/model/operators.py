"""The kernels as torch operators, for `torch.compile`: it calls them and fuses the rest."""

import torch
from torch import Tensor

from eligo.pixels.model import kernels


@torch.library.custom_op("eligo_pixels::depthwise", mutates_args=())
def depthwise(x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor | None = None) -> Tensor:
    """`kernels.depthwise`."""
    return kernels.depthwise(x, weight, bias, onto)


@depthwise.register_fake
def _(x: Tensor, _weight: Tensor, _bias: Tensor, onto: Tensor | None = None) -> Tensor:
    dtype = x.dtype if onto is None else torch.promote_types(x.dtype, onto.dtype)
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("eligo_pixels::norm", mutates_args=())
def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`kernels.norm`."""
    return kernels.norm(x, weight, bias, eps, dtype)


@norm.register_fake
def _(x: Tensor, _weight: Tensor, _bias: Tensor, _eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("eligo_pixels::rotated", mutates_args=())
def rotated(qkv: Tensor, cos_sin: Tensor) -> Tensor:
    """`kernels.rotated`."""
    return kernels.rotated(qkv, cos_sin)


@rotated.register_fake
def _(qkv: Tensor, cos_sin: Tensor) -> Tensor:
    head_dim = 2 * cos_sin.shape[-2]
    return qkv.new_empty((3, *qkv.shape[:3], qkv.shape[-1] // 3 // head_dim, head_dim))


@torch.library.custom_op("eligo_pixels::attend", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    line: str,
    decay: Tensor,
    prior_weights: Tensor,
    z: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """`kernels.attend`."""
    return kernels.attend(query, key, value, line, decay, prior_weights, z, valid)


@attend.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
