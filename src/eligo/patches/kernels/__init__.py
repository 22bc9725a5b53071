"""Ways to score all pairs of images and texts: one definition, several speeds.

- `reference`: the definition as a loop over texts; slow, plain, the oracle of the others.
- `torch`: the same algebra, hoisted and blocked; any device, with gradients in little memory.
- `triton`: one fused CUDA kernel, forward only.
- `auto`: the fastest that can do the job; logged.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.patches.kernels import blocks, reference
from eligo.patches.parts import Parts
from eligo.patches.scores import Matches
from eligo.patches.sides import Images, Texts

KernelName = Literal["auto", "reference", "torch", "triton"]
KERNELS: tuple[KernelName, ...] = ("auto", "reference", "torch", "triton")

_log = logging.getLogger(__name__)


def match(
    kernel: KernelName, parts: Parts, images: Images, texts: Texts, *, choices: bool
) -> Matches:
    """All pairs; `choices` asks for the selections too."""
    return _pick(kernel, parts, images, texts, choices)(parts, images, texts, choices=choices)


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


def _pick(
    kernel: KernelName, parts: Parts, images: Images, texts: Texts, choices: bool
) -> Callable[..., Matches]:
    if kernel == "reference":
        return reference.match
    if kernel == "torch":
        return blocks.match
    obstacle = _obstacle_to_triton(parts, images, texts, choices)
    if kernel == "triton" and obstacle:
        raise InputError(f"kernel='triton': {obstacle}; use kernel='torch' or 'auto'")
    _log.debug("kernel %s: %s", kernel, "torch, since " + obstacle if obstacle else "triton")
    return blocks.match


def _obstacle_to_triton(parts: Parts, images: Images, texts: Texts, choices: bool) -> str:
    return "not yet"
