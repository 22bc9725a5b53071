"""Selections of learned modules as CUDA graphs: their kernels take longer to launch than to run.

A module with `capturable = True` is recorded in the third call with the same shapes and replayed
from then on: one launch instead of seventy. A module has at most `_MAX_GRAPHS` graphs; further
shapes run eagerly. Threads share graphs, one at a time. After a second thread has used a module,
nothing is recorded: torch cannot draw random numbers in one thread while another records.
"""

import itertools
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from eligo.nn.cuda_graphs import capture
from eligo.selection import Selection
from eligo.tokens.reducer import Budget, Reducer, ReducerContext

logger = logging.getLogger("eligo.tokens")

_EAGER_RUNS = 2  # runs of the same shapes before they are recorded
_MAX_GRAPHS = 8  # per module: up to about 100 MiB each
_MAX_SHAPES = 1024  # shapes that are counted before they are recorded
_MAX_TOKENS = 2**14  # of all images together: larger kernels take longer than their launches


def select_tokens(reducer: Reducer, context: ReducerContext, budget: Budget) -> Selection:
    """Return the reducer's selection in raster order, replayed where possible."""
    if _can_record(reducer, context, budget):
        assert isinstance(reducer, nn.Module)
        with _lock:
            graphs = _GRAPHS.setdefault(reducer, _ModuleGraphs())
        # A model may be spread over several devices.
        with torch.cuda.device(context.features.device), graphs.lock:
            graph = graphs.find(reducer, context, budget)
            if graph is not None:
                return graph.replay(context)
    return _select_eagerly(reducer, context, budget)


def _select_eagerly(reducer: Reducer, context: ReducerContext, budget: Tensor) -> Selection:
    selection = reducer.select(context, budget)
    if getattr(reducer, "in_raster_order", False):
        return selection
    # Every image has as many tokens as its budget, so only uneven budgets leave padding.
    return selection.in_order(padded=len(set(budget.tolist())) > 1)


def _can_record(reducer: Reducer, context: ReducerContext, budget: Tensor) -> bool:
    """Whether the selection can be recorded: its shapes must not depend on values on the GPU."""
    return (
        context.features.is_cuda
        and getattr(reducer, "capturable", False)
        and not context.padded
        and context.mask.numel() <= _MAX_TOKENS
        and len(set(budget.tolist())) == 1
        and not torch.is_grad_enabled()
        and not torch.cuda.is_current_stream_capturing()
    )


class _Graph:
    """One recorded selection, with inputs and outputs at fixed addresses."""

    def __init__(self, reducer: Reducer, context: ReducerContext, budget: Tensor) -> None:
        self.inputs = {name: value.clone() for name, value in context.tensors().items()}
        fixed = replace(context, **self.inputs)
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):  # libraries allocate their workspaces in the first run
            _select_eagerly(reducer, fixed, budget)
        here.wait_stream(side)
        self.output, self._replay = capture(lambda: _select_eagerly(reducer, fixed, budget))

    def replay(self, context: ReducerContext) -> Selection:
        """Return a copy of the selection for a context of the same shapes."""
        for name, value in context.tensors().items():
            self.inputs[name].copy_(value)
        self._replay()
        output = self.output
        assignment = None if output.assignment is None else output.assignment.clone()
        return Selection(output.indices.clone(), output.scores.clone(), context.mask, assignment)


@dataclass
class _ModuleGraphs:
    """The graphs of one module."""

    weights: tuple[int, ...] = ()  # addresses of the recorded weights
    num_calls: Counter[Any] = field(default_factory=Counter)
    graphs: dict[Any, _Graph] = field(default_factory=dict)
    is_disabled: bool = False  # after a failed recording, or when threads share the module
    thread: int = field(default_factory=threading.get_ident)  # the first one
    lock: Any = field(default_factory=threading.Lock)  # guards inputs and outputs of graphs

    def find(self, reducer: nn.Module, context: ReducerContext, budget: Tensor) -> _Graph | None:
        """Return the graph for these shapes, recorded now if due; None: run eagerly."""
        tensors = itertools.chain(reducer.parameters(), reducer.buffers())
        weights = tuple(tensor.data_ptr() for tensor in tensors)
        self.is_disabled |= self.thread != threading.get_ident()
        if weights != self.weights:
            self.weights = weights
            self.graphs.clear()
        key = (
            context.features.device,
            torch.cuda.current_stream().cuda_stream,
            torch.is_inference_mode_enabled(),
            tuple((name, value.shape, value.dtype) for name, value in context.tensors().items()),
            context.question_padded,
            tuple(budget.tolist()),
        )
        if key not in self.graphs:
            if self.is_disabled or len(self.graphs) == _MAX_GRAPHS:
                return None
            if len(self.num_calls) == _MAX_SHAPES:
                self.num_calls.clear()
            self.num_calls[key] += 1
            if self.num_calls[key] <= _EAGER_RUNS:
                return None
            del self.num_calls[key]
            assert isinstance(reducer, Reducer)
            try:
                self.graphs[key] = _Graph(reducer, context, budget)
            except RuntimeError as error:  # no memory, or an operation that cannot be recorded
                logger.warning("%s: selections are not replayed: %s", reducer.name, error)
                self.is_disabled = True
                return None
        return self.graphs[key]


_lock = threading.Lock()
_GRAPHS: WeakKeyDictionary[nn.Module, _ModuleGraphs] = WeakKeyDictionary()
