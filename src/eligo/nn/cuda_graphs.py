"""A function of tensors as CUDA graphs: one launch for all its kernels.

With one image at a time, a GPU waits for launches rather than for arithmetic. A graph is recorded
for every combination of shapes and types, from the second call on, so that inputs that never come
again are not recorded. The least recently used graph is dropped; all share one memory pool.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor | None, ...]
Recorded = Callable[[Tensors], Tensors]
Key = Hashable

_MAX_SEEN = 256  # combinations that are remembered
_WARM_UP = 2  # calls before recording: kernels are compiled and libraries choose algorithms
_log = logging.getLogger(__name__)


class GraphedFunction:
    """Runs `function` from a CUDA graph; on a CPU, or if recording fails, as it is.

    The function maps tensors (or None) on one device to such a tuple, without waiting for the
    device, and without gradients. What it reads besides its inputs (weights) is read from the same
    memory in every call: `forget` the graphs when that is replaced. `keep` returns what must stay
    alive as long as a graph. Threads may share a `GraphedFunction`; they take turns.
    """

    def __init__(
        self,
        function: Callable[..., Tensors],
        *,
        max_graphs: int = 4,
        keep: Callable[[], Any] = lambda: None,
    ) -> None:
        self.function, self.max_graphs, self._keep = function, max_graphs, keep
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop all graphs and their memory."""
        with self._lock:
            self._graphs: OrderedDict[Key, Recorded | None] = OrderedDict()  # None: it failed
            self._seen: OrderedDict[Key, None] = OrderedDict()
            self._shared: _Shared | None = None

    def __call__(self, *inputs: Tensor | None, **settings: Any) -> Tensors:
        """Return the outputs of the function, in memory of their own.

        Every combination of `settings` (hashable, and passed on) has its own graph.
        """
        function = partial(self.function, **settings)
        if _on_one_gpu(inputs):
            shapes = tuple(None if x is None else (x.shape, x.dtype, x.device) for x in inputs)
            with self._lock:
                graph = self._graph((shapes, *settings.items()), function, inputs)
                if graph is not None:
                    return graph(inputs)
        with torch.no_grad():
            return function(*inputs)

    def memory(self) -> dict[str, int]:
        """Return the number of graphs, and the bytes that they hold on the GPU."""
        with self._lock:
            graphs = [graph for graph in self._graphs.values() if isinstance(graph, _Graph)]
            held = sum(x.nbytes for graph in graphs for x in graph.inputs if x is not None)
            if self._shared is not None:
                held += self._shared.bytes()
            return {"graphs": len(graphs), "bytes": held}

    def _graph(
        self, key: Key, function: Callable[..., Tensors], inputs: Tensors
    ) -> Recorded | None:
        """The graph of these shapes, recorded if they were seen before."""
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return None
        try:
            self._graphs[key] = self._record(function, inputs)
        except Exception as error:  # torch raises many kinds
            why = (str(error).splitlines() or [type(error).__name__])[0]
            _log.warning("a CUDA graph could not be recorded (%s); running without it", why)
            self._graphs[key] = None
        while len(self._graphs) > self.max_graphs:
            self._graphs.popitem(last=False)
        return self._graphs[key]

    def _record(self, function: Callable[..., Tensors], inputs: Tensors) -> Recorded:
        if self._shared is None:
            self._shared = _Shared(next(x.device for x in inputs if x is not None))
        return _Graph(function, inputs, self._shared, self._keep)


class _Shared:
    """What the graphs of a function share: memory, and the end of the last one that used it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream(device)
        self.done: torch.Event | None = None

    def bytes(self) -> int:
        parts = torch.cuda.memory_snapshot()
        return sum(x["total_size"] for x in parts if tuple(x["segment_pool_id"]) == self.pool)


class _Graph:
    """One recorded graph, with the tensors that it reads and writes."""

    def __init__(
        self,
        function: Callable[..., Tensors],
        inputs: Tensors,
        shared: _Shared,
        keep: Callable[[], Any],
    ) -> None:
        self.graph, self.shared = torch.cuda.CUDAGraph(), shared
        self.inputs = tuple(None if x is None else x.clone() for x in inputs)
        stream, caller = shared.stream, torch.cuda.current_stream(shared.device)
        stream.wait_stream(caller)
        with torch.cuda.device(shared.device), torch.no_grad():
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    function(*self.inputs)
            # Other threads may use the GPU meanwhile.
            with torch.cuda.graph(
                self.graph, pool=shared.pool, stream=stream, capture_error_mode="thread_local"
            ):
                self.outputs = function(*self.inputs)
        caller.wait_stream(stream)
        self.kept = keep()

    def __call__(self, inputs: Tensors) -> Tensors:
        device, shared = self.shared.device, self.shared
        with torch.cuda.device(device), torch.no_grad():
            stream = torch.cuda.current_stream(device)
            if shared.done is not None:  # the last graph may have run on another stream
                stream.wait_event(shared.done)
            for ours, given in zip(self.inputs, inputs, strict=True):
                if ours is not None and given is not None:
                    ours.copy_(given, non_blocking=True)
            self.graph.replay()
            outputs = tuple(None if x is None else x.clone() for x in self.outputs)
            shared.done = stream.record_event()
        return outputs


def _on_one_gpu(inputs: Tensors) -> bool:
    devices = {x.device for x in inputs if x is not None}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"
