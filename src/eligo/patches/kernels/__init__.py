"""Kernels that score all pairs of images and texts: the same numbers at different speeds.

- `reference`: the definition as a loop over texts; slow, the oracle of the others.
- `torch`: batched matrix products; any device, with gradients in little memory.
- `triton`: fused CUDA kernels, forward only.
- `auto`: the fastest that supports the call; logged.
"""

import logging
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.patches.kernels import blocks, reference
from eligo.patches.kernels.hoist import ImageRows
from eligo.patches.kernels.interface import Matches, Parts
from eligo.patches.model.inputs import Images, Texts

KernelName = Literal["auto", "reference", "torch", "triton"]
KERNELS: tuple[KernelName, ...] = ("auto", "reference", "torch", "triton")

LARGEST_PATCHES, LARGEST_WORDS = 256, 128  # of the Triton kernel
_log = logging.getLogger(__name__)


def match(
    kernel: KernelName, parts: Parts, images: Images, texts: Texts, *, decisions: bool
) -> Matches:
    """Score all pairs; `decisions`: return the selections too."""
    return _pick(kernel, parts, images, texts)(parts, images, texts, decisions=decisions)


def match_rows(kernel: KernelName, parts: Parts, rows: ImageRows, texts: Texts) -> Matches:
    """Score all pairs of images that were hoisted before (not with `reference`)."""
    fused = kernel in ("auto", "triton") and not _obstacle_to_triton(parts, rows, texts)
    return blocks.match_rows(parts, rows, texts, fused=fused)


def match_pairs(
    kernel: KernelName,
    parts: Parts,
    images: Images,
    texts: Texts,
    image_ids: Int[Tensor, " pairs"],
    text_ids: Int[Tensor, " pairs"],
) -> Float[Tensor, " pairs"]:
    """Score the given pairs only, with gradient."""
    scorer = reference if kernel == "reference" else blocks
    return scorer.match_pairs(parts, images, texts, image_ids, text_ids)


def _pick(kernel: KernelName, parts: Parts, images: Images, texts: Texts) -> Callable[..., Matches]:
    if kernel == "reference":
        return reference.match
    if kernel == "torch":
        return blocks.match
    obstacle = _obstacle_to_triton(parts, images, texts)
    if kernel == "triton" and obstacle:
        raise InputError(f"kernel='triton': {obstacle}; use kernel='torch' or 'auto'")
    _log.debug("kernel %s: %s", kernel, f"torch, as {obstacle}" if obstacle else "triton")
    return blocks.match if obstacle else partial(blocks.match, fused=True)


def _obstacle_to_triton(parts: Parts, images: Images | ImageRows, texts: Texts) -> str:
    """Return why the Triton kernel cannot be used; empty if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if not images.patches.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return "it needs a CUDA device (or TRITON_INTERPRET=1)"
    tensors = (images.patches, images.cls, texts.words.vectors, *parts.parameters())
    needs_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if torch.is_grad_enabled() and needs_grad:
        return "it has no backward pass (use torch.no_grad())"
    if images.patches.dtype == torch.float64:
        return "it computes in float32 at most"
    num_patches, num_words = images.patches.shape[1], texts.words.mask.shape[1]
    if texts.dense is not None and not parts.paper:
        num_words = max(num_words, texts.dense.mask.shape[1])
    if num_patches > LARGEST_PATCHES or num_words > LARGEST_WORDS:
        return (
            f"{num_patches} patches and {num_words} words do not fit on the chip (at most "
            f"{LARGEST_PATCHES} and {LARGEST_WORDS})"
        )
    return ""
