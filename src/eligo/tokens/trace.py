"""Record of a pruned forward pass: kept columns, time of the reducers; and the answer loss."""

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
    """Measures milliseconds; on CUDA with events, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            # In a CUDA graph, external events are recorded anew by every replay.
            options = {"external": True} if torch.cuda.is_current_stream_capturing() else {}
            self._events = [torch.cuda.Event(enable_timing=True, **options) for _ in range(2)]
            self._events[0].record()
        self._start, self._stop = time.perf_counter(), 0.0

    def stop(self) -> None:
        """Stop measuring."""
        self._stop = time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    @property
    def milliseconds(self) -> float:
        """Elapsed time; waits for the device if necessary."""
        if self._events is None:
            return 1000 * (self._stop - self._start)
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1])


@dataclass(frozen=True)
class StageTrace:
    """One reduction; one row per image, in the order of the batch."""

    layer: int
    """The layer whose input was cut; 0: before the language model."""
    name: str
    """Name of the reducer."""
    selection: Selection
    """Candidates are the tokens that reached the stage."""
    positions: Int[Tensor, "images kept"]
    """Raster index of the kept tokens in the image's grid, ascending; -1 pads."""
    stopwatch: Stopwatch

    @property
    def milliseconds(self) -> float:
        """Time of the reducer."""
        return self.stopwatch.milliseconds


@dataclass(repr=False)
class Trace:
    """Record of one prompt under `pruning` or `masking`.

    Lengths differ from layer to layer; `columns` holds the columns of the prompt in each layer.
    `print(trace)` says how many tokens were kept.
    """

    stages: list[StageTrace] = field(default_factory=list)
    grid: Int[Tensor, "images 2"] | None = None
    """Rows and columns of each image's token grid; a video has its frames below each other."""
    frames: Int[Tensor, " images"] | None = None
    """Frames of each video; None: images."""
    rows: Int[Tensor, " images"] | None = None
    """Batch row of each image."""
    columns: list[Int[Tensor, "batch kept"]] = field(default_factory=list)
    """Per layer: its columns of the prompt, ascending; -1 pads shorter rows on the left. Under
    `masking`, which removes nothing: the columns that `pruning` would keep."""
    merged_columns: Int[Tensor, "batch merged"] | None = None
    """Under `masking`: the columns that all layers and the logits have."""
    num_columns: int = 0
    """Length of the full prompt."""

    def __repr__(self) -> str:
        """Return the length of the prompt, and how many tokens every stage kept.

        >>> Trace()
        <Trace: empty>
        """
        if not self.num_columns:
            return "<Trace: empty>"
        parts = [f"{self.num_columns} tokens"]
        parts += [f"{self.lengths[-1]} in the last layer"] if self.columns else []
        for stage in self.stages:
            kept = sorted(set(stage.selection.num_kept.tolist()))
            shown = "-".join(map(str, [kept[0], kept[-1]] if len(kept) > 1 else kept))
            parts.append(
                f"{stage.name} kept {shown} of {stage.selection.scores.shape[-1]} vision tokens "
                f"before layer {stage.layer}"
            )
        return f"<Trace: {', '.join(parts)}>"

    @property
    def output_columns(self) -> Int[Tensor, "batch kept"]:
        """Columns of the prompt in the logits."""
        if self.merged_columns is not None:
            return self.merged_columns
        if not self.columns:
            raise InputError("trace: it is empty; expected a model that ran inside the context")
        return self.columns[-1]

    @property
    def selections(self) -> list[Selection]:
        """Selections of all stages."""
        return [stage.selection for stage in self.stages]

    @property
    def lengths(self) -> list[int]:
        """Length of the prompt in each layer."""
        return [columns.shape[-1] for columns in self.columns]

    @property
    def selector_ms(self) -> float:
        """Time of all reducers together."""
        return sum((stage.milliseconds for stage in self.stages), 0.0)


class LatestTrace(Trace):
    """The trace of the latest prompt of the reading thread, else of any thread."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._of_any = Trace()

    def show(self, trace: Trace) -> None:
        """Show this trace from now on."""
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
    """Return the mean cross-entropy of the labelled tokens, for logits that lost columns.

    `logits` (or a model output with logits) come from a forward pass under `pruning`; `labels` are
    as long as the full prompt. Do not pass `labels` to the model: it does not have the columns.
    """
    scores = getattr(logits, "logits", logits)
    assert isinstance(scores, Tensor)
    columns = trace.output_columns.to(labels.device)
    if labels.shape[-1] != trace.num_columns or scores.shape[1] != columns.shape[-1]:
        raise InputError(
            f"answer_loss: got labels {tuple(labels.shape)} and logits {tuple(scores.shape)}; "
            f"expected {trace.num_columns} columns of labels and {columns.shape[-1]} of logits"
        )
    targets = gather(labels, columns).masked_fill(columns < 0, ignore_index)[:, 1:]
    targets = targets.to(scores.device)
    losses = F.cross_entropy(
        scores[:, :-1].float().transpose(1, 2), targets, ignore_index=ignore_index, reduction="sum"
    )
    return losses / (targets != ignore_index).sum().clamp_min(1)
