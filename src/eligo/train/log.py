"""Metrics: averaged on the device, then written to metrics.jsonl and TensorBoard."""

import json
import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.io.files import GrowingFile
from eligo.train.processes import Processes

logger = logging.getLogger("eligo.train")
_MIN_EVALUATIONS = 3  # for `no_improvement`


class Meter:
    """Weighted means of named scalars; only `means` and `state` wait for the device."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.sums: dict[tuple[str, ...], Float[Tensor, "2 names"]] = {}

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor | float], weight: Tensor | float = 1.0) -> None:
        """Add one observation of each value; those that are not finite are left out."""
        device = self.processes.device
        stacked = torch.stack(
            [
                value.detach().float() if isinstance(value, Tensor) else _full(value, device)
                for value in values.values()
            ]
        )
        finite = stacked.isfinite()
        weights = finite.float() * weight
        added = torch.stack([torch.where(finite, stacked, 0.0) * weights, weights])
        names = tuple(values)
        self.sums[names] = self.sums[names] + added if names in self.sums else added

    def means(self) -> dict[str, float]:
        """Return the means over all processes since the last call; NaN without finite values."""
        means: dict[str, float] = {}
        for names, sums in self.sums.items():
            self.processes.sum_(sums)
            means |= dict(zip(names, (sums[0] / sums[1]).tolist(), strict=True))
        self.sums.clear()
        return means

    def state(self) -> list[list]:
        """Return the state for a checkpoint, summed over all processes, which all call this."""
        for sums in self.sums.values():
            self.processes.sum_(sums)
            if not self.processes.is_main:
                sums.zero_()
        return [[list(names), sums.tolist()] for names, sums in self.sums.items()]

    def load(self, state: list[list]) -> None:
        """Restore what `state` returned."""
        for names, sums in state:
            loaded = torch.tensor(sums, device=self.processes.device)
            share = 1.0 if self.processes.is_main else 0.0
            self.sums[tuple(names)] = loaded * share


class MetricLog:
    """Writes `metrics.jsonl` and, where tensorboard is installed, `tensorboard/`."""

    def __init__(self, folder: Path, start_step: int) -> None:
        self.file = GrowingFile(folder / "metrics.jsonl")
        try:
            self.board = _Board(folder / "tensorboard", start_step)
        except ImportError:
            logger.info("tensorboard is not installed (extra: tensorboard); metrics.jsonl only")
            self.board = None

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Write the metrics of one step of the split `train` or `validation`."""
        line = {"step": step, "split": split}
        line |= {key: value if math.isfinite(value) else None for key, value in values.items()}
        self.file.write((json.dumps(line) + "\n").encode())
        if self.board is not None:
            self.board.write(step, {f"{split}/{key}": value for key, value in values.items()})

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.board is not None:
            self.board.file.close()


class _Board:
    """An event file of TensorBoard.

    Not `SummaryWriter`: that writes in a thread, where a full disk ends in a traceback.
    """

    def __init__(self, folder: Path, start_step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = event_pb2  # generated at run time, unknown to type checkers
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        unique = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}"
        self.file = GrowingFile(folder / f"events.out.tfevents.{unique}")
        self._records = RecordWriter(self.file)
        self._add(file_version="brain.Event:2")
        # Hides later steps that an earlier process wrote.
        self._add(
            step=start_step + 1, session_log=events.SessionLog(status=events.SessionLog.START)
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step."""
        shown = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step=step, summary=self._summary(value=shown))

    def _add(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        self._records.write(event.SerializeToString())


def _full(value: float, device: torch.device) -> Tensor:
    # torch.tensor would copy from the host, which waits for the device.
    return torch.full((), float(value), device=device)


def no_improvement(folder: Path, best_step: int | None) -> str | None:
    """Return a warning if the first of several evaluations is the best one; else None."""
    path = folder / "metrics.jsonl"
    text = path.read_text("utf-8") if path.is_file() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    steps = [line["step"] for line in lines if line.get("split") == "validation"]
    if len(steps) < _MIN_EVALUATIONS or best_step != steps[0]:
        return None
    return (
        f"{folder}: the first of {len(steps)} evaluations, at step {best_step}, is the best: "
        "training did not improve the model after it; see metrics.jsonl there, and try another "
        "learning rate, or more data"
    )
