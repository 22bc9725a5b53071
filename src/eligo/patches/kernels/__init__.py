"""Ways to score all pairs of images and texts: one definition, several speeds.

- `reference`: the definition as a loop over texts; slow, plain, the oracle of the others.
- `torch`: the same algebra, hoisted and blocked; any device, with gradients in little memory.
- `triton`: one fused CUDA kernel, forward only.
- `auto`: the fastest that can do the job; logged.
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
from eligo.patches.model.parts import Parts
from eligo.patches.model.scores import Matches
from eligo.patches.model.sides import Images, Texts

KernelName = Literal["auto", "reference", "torch", "triton"]
KERNELS: tuple[KernelName, ...] = ("auto", "reference", "torch", "triton")

LARGEST_PATCHES, LARGEST_WORDS = 256, 128  # of the fused kernel

_log = logging.getLogger(__name__)


def match(
    kernel: KernelName, parts: Parts, images: Images, texts: Texts, *, choices: bool
) -> Matches:
    """All pairs; `choices` asks for the selections too."""
    return _pick(kernel, parts, images, texts)(parts, images, texts, choices=choices)


def match_rows(kernel: KernelName, parts: Parts, rows: ImageRows, texts: Texts) -> Matches:
    """All pairs of images that were hoisted before; the loop has no such form."""
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
    """The scores of some pairs, with gradient."""
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
    """Why the fused kernel cannot do the job; empty if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if not images.patches.is_cuda and not _interpreted():
        return "it needs a CUDA device (or TRITON_INTERPRET=1)"
    tensors = (images.patches, images.cls, texts.words.vectors, *parts.parameters())
    learns = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if torch.is_grad_enabled() and learns:
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


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
