"""Stands in for CUDA graphs on a CPU: records operators, and runs the same ones again.

Like a CUDA graph, a replay runs no Python of the model, reads and writes the memory of the
recording, and has burnt in every number that Python computed. Like a capture, a recording raises
where Python reads a value of a tensor "on the device", and where numbers are uploaded to it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

SYNCS = {
    "_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select", "unique",
}  # fmt: skip
READS = {
    Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.__index__, Tensor.equal, torch.equal,
}  # fmt: skip


class _OnHost:
    """Tensors that would be on the host: made from Python numbers, or of such tensors only."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}

    def has(self, tensor: Tensor) -> bool:
        return self.tensors.get(id(tensor)) is tensor

    def add(self, tensor: Tensor) -> None:
        self.tensors[id(tensor)] = tensor


class _Reads(TorchFunctionMode):
    def __init__(self, on_host: _OnHost) -> None:
        super().__init__()
        self.on_host = on_host

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in READS and not self.on_host.has(args[0]):
            raise RuntimeError(f"recording: {func.__name__} waits for the device")
        return func(*args, **(kwargs or {}))


class _Log(TorchDispatchMode):
    def __init__(self, on_host: _OnHost) -> None:
        super().__init__()
        self.on_host = on_host
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        host = [x for x in tensors if self.on_host.has(x)]
        output = func(*args, **kwargs)
        if name == "lift_fresh" or (host and len(host) == len(tensors)):
            for x in tree_flatten(output)[0]:
                if isinstance(x, Tensor):
                    self.on_host.add(x)
            return output
        if name in SYNCS:
            raise RuntimeError(f"recording: {name} waits for the device")
        if any(x.ndim for x in host):
            raise RuntimeError(f"recording: {name} needs numbers from the host")
        # Aliases: a parameter that is given other memory later was recorded with this one.
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        self.calls.append((func, args, kwargs, output))
        return output


class FrozenRecorder:
    """Implements `eligo.nn.cuda_graphs.Recorder` on a CPU."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0
        self.turns = 0

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Record after one warm-up."""
        on_host = _OnHost()
        log = _Log(on_host)
        with torch.no_grad():
            run()
            with _Reads(on_host), log:
                result = run()
        self.recordings += 1

        def replay() -> None:
            assert self.turns == 1
            self.replays += 1
            for func, args, kwargs, output in log.calls:
                _store(func(*args, **kwargs), output)

        return result, replay

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count who is inside."""
        self.turns += 1
        try:
            with torch.no_grad():
                yield
        finally:
            self.turns -= 1

    def bytes(self) -> int:
        """Return something."""
        return 1000 * self.recordings


def _store(new: Any, old: Any) -> None:
    """Write results where the recording had them; views already show theirs."""
    for x, y in zip(tree_flatten(new)[0], tree_flatten(old)[0], strict=True):
        if isinstance(x, Tensor) and x.data_ptr() != y.data_ptr():
            assert x.shape == y.shape
            y.copy_(x)
