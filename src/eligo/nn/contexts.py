"""Context managers: the precision of products, and recorded outputs of modules."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast; does nothing if it is not enabled."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def allow_tf32_for(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Allow TF32 for float32 products on CUDA if their inputs were computed in a half precision.

    TF32 has ten mantissa bits, as many as float16 and more than bfloat16, so no precision is lost.
    Sums stay float32.
    """
    if dtype in (torch.float16, torch.bfloat16):
        return _matmul_precision("tf32", torch.backends.cuda.matmul)
    return nullcontext()


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable autocast and TF32, so that selections do not depend on global settings."""
    cpu: Any = torch.backends.mkldnn
    with (
        _matmul_precision("ieee", torch.backends.cuda.matmul, cpu.matmul),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextmanager
def _matmul_precision(precision: str, *backends: Any) -> Iterator[None]:
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = precision
        yield
    finally:
        for backend, old in zip(backends, before, strict=True):
            backend.fp32_precision = old


@contextmanager
def record_outputs(modules: Iterable[nn.Module], last: int | None = None) -> Iterator[list[Tensor]]:
    """Collect the outputs of modules in the order of their calls; of a tuple, the first item.

    `last`: only this many last columns of (batch, columns, width). Unlike `output_hidden_states`,
    this does not cut compiled layers into pieces.

    >>> layer = nn.Linear(2, 3)
    >>> with record_outputs([layer]) as outputs:
    ...     _ = layer(torch.zeros(1, 2))
    >>> [tuple(states.shape) for states in outputs]
    [(1, 3)]
    """
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple) -> None:
        states = output[0] if isinstance(output, tuple) else output
        outputs.append(states if last is None else states[:, -last:])

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
