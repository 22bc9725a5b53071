"""Choices of learned parts as CUDA graphs: their small kernels take longer to launch than to run.

A part that says `capturable` is recorded when the same shapes come for the third time, and replayed
from then on: one launch instead of seventy. Shapes that differ from call to call are not worth a
recording, so each part has at most `_MOST`; what comes later runs plainly. Threads share them, one
at a time; none is made once a second thread has come, as torch cannot draw random numbers in one
thread while another records.
"""

import itertools
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn

from eligo.selection import Selection
from eligo.tokens.reducer import Reducer, ReducerContext

logger = logging.getLogger("eligo.tokens")

_PLAIN = 2  # runs of the same shapes before they are recorded
_MOST = 8  # recordings of one part: at the largest some 100 MiB each
_REMEMBERED = 1024  # shapes that were seen and are not recorded
_TOKENS = 2**14  # of all images together: the kernels of more take longer than their launches


def choose(reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
    """A reducer's choice in raster order, replayed where that is possible."""
    if _is_even(reducer, context, budget):
        assert isinstance(reducer, nn.Module)
        with _lock:
            recordings = _RECORDINGS.setdefault(reducer, _Recordings())
        # A model may be spread over several devices.
        with torch.cuda.device(context.features.device), recordings.lock:
            recorded = recordings.of(reducer, context, budget)
            if recorded is not None:
                return recorded.replay(context)
    return _plainly(reducer, context, budget)


def _plainly(reducer: Reducer, context: ReducerContext, budget: Tensor) -> Selection:
    selection = reducer.select(context, budget)
    if getattr(reducer, "in_raster_order", False):
        return selection
    # Every image has as many tokens as its budget, so only uneven budgets leave padding.
    return selection.in_order(padded=len(set(budget.tolist())) > 1)


def _is_even(reducer: Reducer, context: ReducerContext, budget: Tensor) -> bool:
    """Whether nothing in the choice depends on numbers that only the device knows."""
    return (
        context.features.is_cuda
        and getattr(reducer, "capturable", False)
        and not context.padded
        and context.mask.numel() <= _TOKENS
        and len(set(budget.tolist())) == 1
        and not torch.is_grad_enabled()
        and not torch.cuda.is_current_stream_capturing()
    )


class _Recorded:
    """One choice, its inputs and outputs at fixed addresses."""

    def __init__(self, reducer: Reducer, context: ReducerContext, budget: Tensor) -> None:
        self.inputs = {name: value.clone() for name, value in _tensors(context).items()}
        fixed = replace(context, **self.inputs)
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):  # libraries make their workspaces in the first run
            _plainly(reducer, fixed, budget)
        here.wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.made = _plainly(reducer, fixed, budget)

    def replay(self, context: ReducerContext) -> Selection:
        """The choice for other values of the same shapes; its tensors are the caller's own."""
        for name, value in _tensors(context).items():
            self.inputs[name].copy_(value)
        self.graph.replay()
        made = self.made
        folded = None if made.assignment is None else made.assignment.clone()
        return Selection(made.indices.clone(), made.scores.clone(), context.mask, folded)


@dataclass
class _Recordings:
    """Those of one part."""

    weights: tuple[int, ...] = ()
    """Where the part's weights are: a recording reads them there."""
    seen: Counter[Any] = field(default_factory=Counter)
    made: dict[Any, _Recorded] = field(default_factory=dict)
    is_refused: bool = False
    """Whether one could not be made, or threads share the part: then there is no other try."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread that came first."""
    lock: Any = field(default_factory=threading.Lock)
    """Inputs are copied and outputs are taken under it: they have fixed addresses."""

    def of(self, reducer: nn.Module, context: ReducerContext, budget: Tensor) -> _Recorded | None:
        """The recording that fits, made now if it is time."""
        held = itertools.chain(reducer.parameters(), reducer.buffers())
        weights = tuple(tensor.data_ptr() for tensor in held)
        self.is_refused |= self.thread != threading.get_ident()
        if weights != self.weights:
            self.weights = weights
            self.made.clear()
        key = (
            context.features.device,
            torch.cuda.current_stream().cuda_stream,
            torch.is_inference_mode_enabled(),
            tuple((name, value.shape, value.dtype) for name, value in _tensors(context).items()),
            context.question_padded,
            tuple(budget.tolist()),
        )
        if key not in self.made:
            if self.is_refused or len(self.made) == _MOST:
                return None
            if len(self.seen) == _REMEMBERED:  # shapes that hardly come again
                self.seen.clear()
            self.seen[key] += 1
            if self.seen[key] <= _PLAIN:
                return None
            del self.seen[key]
            assert isinstance(reducer, Reducer)
            try:
                self.made[key] = _Recorded(reducer, context, budget)
            except RuntimeError as error:  # no memory, or something that no graph can hold
                logger.warning("%s: choices are not replayed: %s", reducer.name, error)
                self.is_refused = True
                return None
        return self.made[key]


def _tensors(context: ReducerContext) -> dict[str, Tensor]:
    return {name: value for name, value in vars(context).items() if isinstance(value, Tensor)}


_lock = threading.Lock()
_RECORDINGS: WeakKeyDictionary[nn.Module, _Recordings] = WeakKeyDictionary()
