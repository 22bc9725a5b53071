"""What was kept, where, and how long choosing took; and the loss that needs to know it."""

import threading
import time
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.ops import gather
from eligo.selection import Selection


class Stopwatch:
    """Milliseconds between two moments; on CUDA by events, so that measuring waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        self._start, self._stop = time.perf_counter(), 0.0

    def stop(self) -> None:
        """End of what is measured."""
        self._stop = time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    @property
    def milliseconds(self) -> float:
        """Waits for the device, if that has not come so far yet."""
        if self._events is None:
            return 1000 * (self._stop - self._start)
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1])


@dataclass(frozen=True)
class StageTrace:
    """One reduction: which, where, and its choice. One row per image, in the order of the batch."""

    layer: int
    """The layer whose input was cut; 0: before the language model."""
    name: str
    """The reducer's."""
    selection: Selection
    """Its candidates are the tokens that reached the stage."""
    positions: Int[Tensor, "images kept"]
    """Raster index of what was kept in the image's grid, in ascending order; -1 pads."""
    stopwatch: Stopwatch

    @property
    def milliseconds(self) -> float:
        """How long the reducer took."""
        return self.stopwatch.milliseconds


@dataclass
class Trace:
    """What happened to one prompt that ran under `pruning` or `masking`.

    Lengths of hidden states differ from layer to layer; `columns` says which columns of the
    prompt, as the processor wrote it, each layer saw.
    """

    stages: list[StageTrace] = field(default_factory=list)
    grid: Int[Tensor, "images 2"] | None = None
    """Rows and columns of each image's token grid."""
    rows: Int[Tensor, " images"] | None = None
    """Which row of the batch each image belongs to."""
    columns: list[Int[Tensor, "batch kept"]] = field(default_factory=list)
    """Per layer: columns of the prompt that it saw, ascending; -1 pads a shorter row, on the left.
    In the training form, which removes nothing, what it would have seen."""
    merged_columns: Int[Tensor, "batch merged"] | None = None
    """In the training form: columns that all its layers, and its logits, really have."""
    num_columns: int = 0
    """Length of the prompt before anything was dropped."""

    @property
    def output_columns(self) -> Int[Tensor, "batch kept"]:
        """Columns of the prompt that the logits have."""
        if self.merged_columns is not None:
            return self.merged_columns
        if not self.columns:
            raise InputError("trace: it is empty; expected a model that ran inside the context")
        return self.columns[-1]

    @property
    def selections(self) -> list[Selection]:
        """One per stage."""
        return [stage.selection for stage in self.stages]

    @property
    def lengths(self) -> list[int]:
        """Per layer: length of what it saw of the prompt."""
        return [columns.shape[-1] for columns in self.columns]

    @property
    def selector_ms(self) -> float:
        """All reducers together."""
        return sum((stage.milliseconds for stage in self.stages), 0.0)

    def stage(self, layer: int) -> StageTrace:
        """The reduction at a layer (0: before the language model)."""
        for stage in self.stages:
            if stage.layer == layer:
                return stage
        raise InputError(
            f"trace: no reduction at layer {layer}; expected one of "
            f"{[stage.layer for stage in self.stages]}"
        )


class LatestTrace(Trace):
    """The trace of the latest prompt: that of the reading thread, else that of any thread."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._of_any = Trace()

    def show(self, trace: Trace) -> None:
        """From now on, show this one."""
        self._of_thread.trace = self._of_any = trace

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(getattr(self._of_thread, "trace", self._of_any), name)
        return super().__getattribute__(name)


_FIELDS = frozenset(field.name for field in fields(Trace))


def answer_loss(
    logits: Float[Tensor, "batch length vocabulary"] | object,
    labels: Int[Tensor, "batch columns"],
    trace: Trace,
    *,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the labelled tokens, for logits that lost columns on the way.

    `logits` (or a model output that has them) are those of a forward pass under `pruning`;
    `labels` are as long as the prompt was. `model(labels=...)` cannot know which columns are
    left, so it is refused there.
    """
    found = getattr(logits, "logits", logits)
    assert isinstance(found, Tensor)
    columns = trace.output_columns.to(labels.device)
    if labels.shape[-1] != trace.num_columns or found.shape[1] != columns.shape[-1]:
        raise InputError(
            f"answer_loss: got labels {tuple(labels.shape)} and logits {tuple(found.shape)}; "
            f"expected {trace.num_columns} columns of labels and {columns.shape[-1]} of logits"
        )
    targets = gather(labels, columns).masked_fill(columns < 0, ignore_index)[:, 1:]
    targets = targets.to(found.device)
    losses = F.cross_entropy(
        found[:, :-1].float().transpose(1, 2), targets, ignore_index=ignore_index, reduction="sum"
    )
    return losses / (targets != ignore_index).sum().clamp_min(1)
