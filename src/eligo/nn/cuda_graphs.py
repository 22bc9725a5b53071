"""CUDA graphs: many kernels in one launch.

With one image at a time, a GPU waits for launches rather than for arithmetic. A graph is recorded
for every combination of shapes and types, from the second call on, so that inputs that never come
again are not recorded. The least recently used graph is dropped; all share one memory pool.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

Tensors = tuple[Tensor | None, ...]
Recorded = Callable[[Tensors], Tensors]
Key = Hashable
T = TypeVar("T")

_MAX_SEEN = 256  # combinations that are remembered
_WARM_UP = 2  # calls before recording: kernels are compiled and libraries choose algorithms
_log = logging.getLogger(__name__)


@runtime_checkable
class Recorder(Protocol):
    """Records functions of tensors. Its recordings share memory, so they take turns."""

    def record(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return what `run` returns, and a function that computes it again, in the same memory."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Inside, inputs are copied, a recording is replayed, and its outputs are copied."""
        ...

    def bytes(self) -> int:
        """Return the bytes that recordings hold, without their inputs."""
        ...


class CudaRecorder:
    """Records CUDA graphs on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)
        self._done: torch.Event | None = None  # the end of the last graph

    def record(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return what `run` returns, and a function that computes it again, in the same memory."""
        stream, caller = self._stream, torch.cuda.current_stream(self.device)
        stream.wait_stream(caller)
        with torch.cuda.device(self.device), torch.no_grad():
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    run()
            result, replay = capture(run, pool=self._pool, stream=stream)
        caller.wait_stream(stream)
        return result, replay

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Order the turns of different streams."""
        with torch.cuda.device(self.device), torch.no_grad():
            stream = torch.cuda.current_stream(self.device)
            if self._done is not None:  # the last graph may have run on another stream
                stream.wait_event(self._done)
            try:
                yield
            finally:
                self._done = stream.record_event()

    def bytes(self) -> int:
        """Return the bytes that graphs hold on the GPU, without their inputs."""
        parts = torch.cuda.memory_snapshot()
        return sum(x["total_size"] for x in parts if tuple(x["segment_pool_id"]) == self._pool)


def capture(run: Callable[[], T], **options: Any) -> tuple[T, Callable[[], None]]:
    """Record a graph on the current device; return what `run` returned, and what replays it.

    Other threads may use the GPU meanwhile. A recording that fails changes nothing.
    """
    caller = torch.cuda.current_stream()
    try:
        with torch.cuda.stream(caller):  # a failed recording leaves its stream current
            return _capture(run, options)
    except BaseException:
        # It also leaves the random generator as if it went on; the end of the next one ends that.
        with suppress(Exception), torch.cuda.stream(caller):
            _capture(lambda: torch.zeros(1, device="cuda"), {})
        raise


def _capture(run: Callable[[], T], options: Mapping[str, Any]) -> tuple[T, Callable[[], None]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
        return run(), graph.replay


class GraphTable(Generic[T]):
    """Graphs by key: recorded at the second sight of a key, the least recently used one dropped."""

    def __init__(self, max_graphs: int) -> None:
        self.max_graphs = max_graphs
        self.clear()

    def clear(self) -> None:
        """Drop all graphs."""
        self._graphs: OrderedDict[Key, T | None] = OrderedDict()  # None: it failed
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def drop_oldest(self) -> None:
        """Drop the least recently used graph."""
        self._graphs.popitem(last=False)

    def graphs(self) -> list[T]:
        """Return all graphs."""
        return [graph for graph in self._graphs.values() if graph is not None]

    def find(self, key: Key, record: Callable[[], T] | None) -> T | None:
        """Return the graph of a key, recorded now if it is due; None: there is none.

        Without `record`, nothing new is recorded.
        """
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        if record is None:
            return None
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return None
        try:
            self._graphs[key] = record()
        except Exception as error:  # torch raises many kinds
            why = (str(error).splitlines() or [type(error).__name__])[0]
            _log.warning("a CUDA graph could not be recorded (%s); running without it", why)
            self._graphs[key] = None
        while len(self._graphs) > self.max_graphs:
            self.drop_oldest()
        return self._graphs[key]


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
            self._table: GraphTable[Recorded] = GraphTable(self.max_graphs)
            self._recorder: Recorder | None = None

    def __call__(self, *inputs: Tensor | None, **settings: Any) -> Tensors:
        """Return the outputs of the function, in memory of their own.

        Every combination of `settings` (hashable, and passed on) has its own graph.
        """
        function = partial(self.function, **settings)
        if _on_one_gpu(inputs):
            shapes = tuple(None if x is None else (x.shape, x.dtype, x.device) for x in inputs)
            with self._lock:
                record = partial(self._record, function, inputs)
                graph = self._table.find((shapes, *settings.items()), record)
                if graph is not None:
                    return graph(inputs)
        with torch.no_grad():
            return function(*inputs)

    def memory(self) -> dict[str, int]:
        """Return the number of graphs, and the bytes that they hold on the GPU."""
        with self._lock:
            graphs = [graph for graph in self._table.graphs() if isinstance(graph, _Graph)]
            held = sum(x.nbytes for graph in graphs for x in graph.inputs if x is not None)
            if self._recorder is not None:
                held += self._recorder.bytes()
            return {"graphs": len(graphs), "bytes": held}

    def _record(self, function: Callable[..., Tensors], inputs: Tensors) -> Recorded:
        if self._recorder is None:
            self._recorder = CudaRecorder(next(x.device for x in inputs if x is not None))
        return _Graph(function, inputs, self._recorder, self._keep)


class _Graph:
    """One recorded graph, with the tensors that it reads and writes."""

    def __init__(
        self,
        function: Callable[..., Tensors],
        inputs: Tensors,
        recorder: Recorder,
        keep: Callable[[], Any],
    ) -> None:
        self.recorder = recorder
        self.inputs = tuple(None if x is None else x.clone() for x in inputs)
        self.outputs, self.replay = recorder.record(lambda: function(*self.inputs))
        self.kept = keep()

    def __call__(self, inputs: Tensors) -> Tensors:
        with self.recorder.turn():
            for ours, given in zip(self.inputs, inputs, strict=True):
                if ours is not None and given is not None:
                    ours.copy_(given, non_blocking=True)
            self.replay()
            return tuple(None if x is None else x.clone() for x in self.outputs)


def _on_one_gpu(inputs: Tensors) -> bool:
    devices = {x.device for x in inputs if x is not None}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"
