"""How exactly selectors compute: float32 whatever autocast says, TF32 where that loses nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, everything runs in the dtype it has; free where nothing is cast anyway."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextmanager
def as_exact_as(given: torch.dtype) -> Iterator[None]:
    """Inside, float32 products on CUDA may use TF32 if `given`, what they come from, is a half.

    TF32 has ten bits, as float16 and more than bfloat16: products of what was rounded before lose
    nothing to speak of, and take a fraction of the time. Sums, and so scores, stay float32.
    """
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    if given in (torch.float16, torch.bfloat16):
        backend.fp32_precision = "tf32"
    try:
        yield
    finally:
        backend.fp32_precision = before
