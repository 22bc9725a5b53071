"""Compilation of the layers of a language model, for training.

A small model in eager mode waits for memory and for Python rather than for matrix products: norms,
casts, dropout and sums are kernels of their own. `torch.compile` joins them. Only the layers are
compiled: one graph serves all of them, and all lengths.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

logger = logging.getLogger("eligo.tokens")
BACKENDS: dict[str, str] = {"cuda": "inductor"}
"""How to compile, by the type of the device; others do not gain enough."""


class CompiledLayers:
    """Layers that are compiled in place when training begins; names of parameters stay the same."""

    def __init__(self, layers: Iterable[nn.Module], trained: Iterable[Tensor]) -> None:
        self.layers, self.trained = list(layers), list(trained)
        self.is_on = False
        self._was_tried = False

    def begin(self, loss: Callable[[], Float[Tensor, ""]]) -> None:
        """Compile once, with `loss` and its gradients as a trial; if that fails, warn and undo.

        Gradients and random numbers of the training stay as they are.
        """
        if self._was_tried:
            return
        self._was_tried = True
        device = self.trained[0].device
        if device.type not in BACKENDS:
            return
        try:
            for layer in self.layers:
                layer.compile(dynamic=True, backend=BACKENDS[device.type])
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.autograd.grad(loss(), self.trained, allow_unused=True)
            self.is_on = True
        except Exception as error:
            self.undo()
            cause = getattr(error, "inner_exception", error)  # of the backend, in torch's own
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
            logger.warning("compile: not possible here (%s); training without it, slower", reason)

    def skipped(self) -> AbstractContextManager:
        """Inside, the layers run as if they were not compiled: other shapes need no graph."""
        return torch.compiler.set_stance("force_eager") if self.is_on else nullcontext()

    def undo(self) -> None:
        """Make the layers plain modules again."""
        for layer in self.layers:
            layer._compiled_call_impl = None
        self.is_on = False
