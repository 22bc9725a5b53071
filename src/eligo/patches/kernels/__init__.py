"""Ways to score all pairs of images and texts: one definition, several speeds.

- `reference`: the definition as a loop over texts; slow, plain, the oracle of the others.
- `torch`: the same algebra, hoisted and blocked; any device, with gradients in little memory.
- `triton`: one fused CUDA kernel, forward only; not written yet.
- `auto`: the fastest that can do the job: `torch`, for now.
"""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.patches.kernels import blocks, reference
from eligo.patches.parts import Parts
from eligo.patches.scores import Matches
from eligo.patches.sides import Images, Texts

KernelName = Literal["auto", "reference", "torch", "triton"]
KERNELS: tuple[KernelName, ...] = ("auto", "reference", "torch", "triton")


def match(
    kernel: KernelName, parts: Parts, images: Images, texts: Texts, *, choices: bool
) -> Matches:
    """All pairs; `choices` asks for the selections too."""
    return _pick(kernel)(parts, images, texts, choices=choices)


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


def _pick(kernel: KernelName) -> Callable[..., Matches]:
    if kernel == "triton":
        raise InputError("kernel='triton': not written yet; use kernel='torch' or 'auto'")
    return reference.match if kernel == "reference" else blocks.match
