"""CUDA graphs of a model under a plan: its vision tower, its prompts, its decoding steps.

They are recorded at the second call with the same sizes and replayed from then on, in any context
with the same model and plan. Whatever is not known to give the same result in a graph runs as it
is: gradients, hooks or adapters of others, reducers that wait for the device, several images per
row, beams. Threads share graphs, one at a time. Once a second thread has used them, nothing is
recorded: torch cannot draw random numbers in one thread while another records.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, finalize, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from eligo.nn.cuda_graphs import CudaRecorder, GraphTable, Recorder
from eligo.tokens.hooks.context import ForwardPass, Kwargs
from eligo.tokens.hooks.model_parts import ModelParts
from eligo.tokens.hooks.packed import PackedTensors
from eligo.tokens.hooks.prompt import PromptScan, constants
from eligo.tokens.hooks.prompt_graphs import PromptGraph, PromptInputs, is_plain, replayed
from eligo.tokens.hooks.step_graphs import StepGraph, StepShape
from eligo.tokens.hosts import Capture, unwrap
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import TOWER_ROWS

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession

MAX_GRAPHS, MAX_BYTES = 8, 4 * 2**30
"""Limits of towers, prompts and steps each, per model and plan."""
_OUTPUTS = ("output_hidden_states", "output_attentions")  # which a config may ask for, too


def make_recorder(device: torch.device) -> Recorder | None:
    """Return what records on a device; None: nothing can."""
    return CudaRecorder(device) if device.type == "cuda" else None


def graphs_of(session: "PruningSession", plan: Plan) -> "ModelGraphs | None":
    """Return the graphs of a session's model under a plan; None if they cannot be used."""
    host = session.host
    reducers = [stage.reducer for stage in plan.stages]
    suits = (
        host.can_record
        and not host.has_windows
        and host.attention in ("sdpa", "eager")
        and plan.positions == "original"
        and session.contexts.scene is None
        and all(getattr(reducer, "capturable", False) for reducer in reducers)
    )
    if not suits:
        return None
    device = next(host.text.parameters()).device
    with _lock:
        plans = _GRAPHS.setdefault(host.core, {})
        if id(plan) in plans and plans[id(plan)].device != device:  # the model was moved
            del plans[id(plan)]
        if id(plan) not in plans:
            recorder = make_recorder(device)
            if recorder is None:
                return None
            plans[id(plan)] = ModelGraphs(recorder, device)
            finalize(plan, _drop, ref(host.core), id(plan))
        return plans[id(plan)]


def graph_stats(model: nn.Module) -> dict[str, int]:
    """Return the number of CUDA graphs of a model, their bytes, and how many prompts they ran."""
    found = [graphs.stats() for graphs in _of_model(model)]
    return {name: sum(one[name] for one in found) for name in ("graphs", "bytes", "replays")}


def drop_graphs(model: nn.Module) -> None:
    """Drop the CUDA graphs of a model, and their memory."""
    for graphs in _of_model(model):
        graphs.forget()


def _of_model(model: nn.Module) -> "list[ModelGraphs]":
    bare = unwrap(model)
    with _lock:
        return list(_GRAPHS.get(getattr(bare, "model", bare), {}).values())


def _drop(core: ReferenceType[nn.Module], plan_id: int) -> None:
    if (model := core()) is not None:
        _GRAPHS.get(model, {}).pop(plan_id, None)


class ModelGraphs:
    """The graphs of one model under one plan."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self.recorder, self.device = recorder, device
        self._lock = threading.RLock()
        self._thread: int | None = None  # the first one
        self._is_shared = False
        self._parts: ModelParts | None = None
        self._weights: list[Any] = []
        self._is_here = False  # all weights are on the device
        self._swapped: WeakSet[Any] = WeakSet()  # caches that others rewrite between steps (beams)
        self.towers: GraphTable[TowerGraph] = GraphTable(MAX_GRAPHS)
        self.prompts: GraphTable[PromptGraph] = GraphTable(MAX_GRAPHS)
        self.steps: GraphTable[StepGraph] = GraphTable(MAX_GRAPHS)
        self.replays = 0  # of prompts

    def forget(self) -> None:
        """Drop all graphs."""
        with self._lock:
            for graph in self.steps.graphs():
                graph.release()
            for table in (self.towers, self.prompts, self.steps):
                table.clear()

    def stats(self) -> dict[str, int]:
        """Return the number of graphs, the bytes that they hold, and the replayed prompts."""
        with self._lock:
            graphs = [*self.towers.graphs(), *self.prompts.graphs(), *self.steps.graphs()]
            held = self.recorder.bytes() + sum(graph.bytes() for graph in graphs)
            return {"graphs": len(graphs), "bytes": held, "replays": self.replays}

    def tower(
        self,
        session: "PruningSession",
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Kwargs,
    ) -> Any:
        """Return the output of the vision tower."""
        tensors = [x for x in kwargs.values() if isinstance(x, Tensor)]
        pixels = args[0] if len(args) == 1 else kwargs.get("pixel_values")
        is_alone = tensors == [] if args else len(tensors) == 1
        if not (isinstance(pixels, Tensor) and is_alone and self.is_ready(session)):
            return run(*args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name != "pixel_values"}
        with self._lock, torch.inference_mode(False):
            key = ("tower", pixels.shape, pixels.dtype, pixels.device, repr(options))
            graph = self._find(
                self.towers, session, key,
                lambda: TowerGraph(session, self.recorder, run, pixels, options),
            )  # fmt: skip
            if graph is not None:
                return graph(session, pixels)
        session.enter_tower()  # drops the attention rows of a recording that failed
        return run(*args, **kwargs)

    def prompt(
        self, session: "PruningSession", scan: PromptScan, capture: Capture, kwargs: Kwargs
    ) -> tuple[ForwardPass, Kwargs] | None:
        """Return the pass of a replayed prompt, and the new arguments of the core.

        Called if `is_ready`.
        """
        if capture.added or capture.frames is not None:
            return None
        given = PromptInputs(session, scan, capture, kwargs)
        if not given.fits(scan, kwargs):
            return None
        with self._lock, torch.inference_mode(False):
            graph = self._find(
                self.prompts, session, given.key(),
                lambda: PromptGraph(session, self.recorder, given),
            )  # fmt: skip
            if graph is None:
                return None
            self.replays += 1
            state, hidden, pairs = graph(given)
            return replayed(state, hidden, pairs, session.remember)

    def step(
        self, session: "PruningSession", forward: ForwardPass, kwargs: Kwargs
    ) -> Callable[[Kwargs], Any] | None:
        """Return what takes the place of the language model for one token; None: nothing does."""
        cache, state = kwargs["past_key_values"], forward.state
        given = kwargs["inputs_embeds" if kwargs.get("input_ids") is None else "input_ids"]
        with self._lock:
            if any(graph.has_lost(cache) for graph in self.steps.graphs()):
                self._swapped.add(cache)
        suits = (
            given.shape[1] == 1
            and forward.times == 1
            and is_plain(kwargs)
            and cache not in self._swapped
            and self.is_ready(session, is_step=True)
        )
        if not suits:
            self.release(cache)
            return None
        shape = StepShape(state, forward.later, len(session.host.layers))
        if shape.bytes(cache) > MAX_BYTES:
            self.release(cache)
            return None

        def run(kwargs: Kwargs) -> Any:
            with self._lock, torch.inference_mode(False):
                graph = self._find(
                    self.steps, session, shape.key(cache),
                    lambda: StepGraph(session, self.recorder, shape, cache, forward, kwargs),
                )  # fmt: skip
                for other in self.steps.graphs():
                    if other is not graph and other.holds(cache):
                        other.release()
                return None if graph is None else graph(shape, cache, forward, kwargs)

        return run

    def release(self, cache: Any) -> None:
        """Copy the keys and values of a cache out of graphs, before others read or change them."""
        with self._lock:
            for graph in self.steps.graphs():
                if graph.holds(cache):
                    graph.release()

    def is_ready(self, session: "PruningSession", *, is_step: bool = False) -> bool:
        """Whether a call may use graphs now; they are dropped if weights were replaced.

        A step looks at the first weight only, which takes no time: `model.to` replaces all.
        """
        host = session.host
        if (
            torch.is_grad_enabled()
            or host.text.training
            or host.tower.training
            or _has_any_global_hook()
            or torch._C._len_torch_dispatch_stack() > 0
            or any(torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu"))
            or any(getattr(host.text.config, name, False) for name in _OUTPUTS)
            or torch.compiler.is_compiling()
        ):
            return False
        with self._lock:
            parts = self._parts
            if parts is None or not (is_step or parts.is_complete()):
                reducers = [stage.reducer for stage in session.plan.stages]
                others = [x for x in (host.projector, *reducers) if isinstance(x, nn.Module)]
                self._parts = parts = ModelParts([host.text, host.tower, *others])
                self._weights = []
            if not parts.is_known or parts.have_hooks_of_others():
                return False
            if is_step and parts.weights(1) == self._weights[:1]:
                return self._is_here
            if (weights := parts.weights()) != self._weights:
                self.forget()
                self._weights = weights
                self._is_here = parts.devices() == {self.device}
            return self._is_here

    def _find(
        self, table: GraphTable[Any], session: "PruningSession", key: Any, record: Callable[[], Any]
    ) -> Any:
        thread = threading.get_ident()
        self._thread = self._thread or thread
        self._is_shared |= self._thread != thread
        backends: Any = torch.backends
        precision = (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision)
        key = (key, type(session.host), session.host.attention, *precision)

        def record_bounded() -> Any:
            graph = record()
            while graph.size() + sum(one.size() for one in table.graphs()) > MAX_BYTES:
                if not table.graphs():
                    break
                table.drop_oldest()
            return graph

        return table.find(key, None if self._is_shared else record_bounded)


class TowerGraph:
    """The recorded vision tower, for pixels of one shape."""

    def __init__(
        self,
        session: "PruningSession",
        recorder: Recorder,
        run: Callable[..., Any],
        pixels: Tensor,
        options: Kwargs,
    ) -> None:
        self._recorder, self._pixels = recorder, pixels.clone()
        known: dict[Any, Tensor] = {}

        def record() -> tuple[type, dict[str, list[bool] | None], list[str], PackedTensors]:
            """Return the output's type, its fields, and recorded attention rows.

            Fields are tensors (None here), or tuples of tensors and None (here: which are tensors).
            """
            session.enter_tower()
            with constants(known):
                output = run(self._pixels, **options)
            packed, tuples = PackedTensors(pixels.device), {}
            for name, value in output.items():
                has_many = isinstance(value, tuple)
                tuples[name] = [x is not None for x in value] if has_many else None
                for x in value if has_many else (value,):
                    if x is not None:
                        packed.add(x)
            rows = session.host.tower_rows
            names = [need for need in TOWER_ROWS for _ in rows[need]]
            for x in (x for need in TOWER_ROWS for x in rows[need]):
                packed.add(x)
            packed.pack()
            return type(output), tuples, names, packed

        self._recorded, self._replay = recorder.record(record)
        self._known = known

    def bytes(self) -> int:
        """Return the bytes of the input."""
        return self._pixels.nbytes

    def size(self) -> int:
        """Return the bytes of input and results."""
        return self.bytes() + self._recorded[-1].bytes()

    def __call__(self, session: "PruningSession", pixels: Tensor) -> Any:
        """Return the output; the host gets the attention rows."""
        kind, tuples, names, packed = self._recorded
        with self._recorder.turn():
            self._pixels.copy_(pixels, non_blocking=True)
            self._replay()
            copies = packed.copies()
            fields = {
                name: next(copies)
                if has is None
                else tuple(next(copies) if one else None for one in has)
                for name, has in tuples.items()
            }
            session.host.begin_tower()
            for name in names:
                session.host.tower_rows[name].append(next(copies))
        return kind(**fields)


_lock = threading.Lock()
_GRAPHS: WeakKeyDictionary[nn.Module, dict[int, ModelGraphs]] = WeakKeyDictionary()
