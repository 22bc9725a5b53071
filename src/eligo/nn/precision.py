"""How exactly selectors compute: float32 whatever autocast says, TF32 where that loses nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, everything runs in the dtype it has; free where nothing is cast anyway."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def as_exact_as(given: torch.dtype) -> AbstractContextManager[object]:
    """Inside, float32 products on CUDA may use TF32 if `given`, what they come from, is a half.

    TF32 has ten bits, as float16 and more than bfloat16: products of what was rounded before lose
    nothing to speak of, and take a fraction of the time. Sums, and so scores, stay float32.
    """
    if given in (torch.float16, torch.bfloat16):
        return _products_in("tf32", torch.backends.cuda.matmul)
    return nullcontext()


@contextmanager
def full_precision() -> Iterator[None]:
    """No autocast and no TF32: selections must not depend on who switched them on."""
    cpu: Any = torch.backends.mkldnn
    with (
        _products_in("ieee", torch.backends.cuda.matmul, cpu.matmul),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextmanager
def _products_in(precision: str, *backends: Any) -> Iterator[None]:
    """How float32 products are computed inside."""
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = precision
        yield
    finally:
        for backend, old in zip(backends, before, strict=True):
            backend.fp32_precision = old
