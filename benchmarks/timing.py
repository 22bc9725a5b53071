"""Helpers of the timing scripts: alternating runs, memory, result files with provenance."""

import json
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from eligo.io.files import write_text
from eligo.report.provenance import provenance


def timed(work: Callable[[], Any], device: str | torch.device = "cpu") -> tuple[float, Any]:
    """Return the seconds of a call, until the device is done, and its result."""
    start = time.perf_counter()
    result = work()
    if str(device).startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def timed_in_turns(
    runs: Mapping[str, Callable[[], Any]], rounds: int, device: str | torch.device = "cpu"
) -> dict[str, list[float]]:
    """Return the seconds of every run in every round; runs alternate, so that load affects all."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(timed(run, device)[0])
    return seconds


def used_bytes(device: str) -> int:
    """Return the memory of this process: allocated on a GPU, or the peak resident set."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_results(path: Path, results: Any, device: str = "cpu", *, key: str | None = None) -> None:
    """Write results with date, hardware and command; with a `key`, as one entry among others."""
    entry = {**provenance(device), "results": results}
    if key is not None:
        entries = json.loads(path.read_text("utf-8")) if path.exists() else {}
        before = entries.get(key, {}).get("results", {})
        entry = entries | {key: entry | {"results": before | results}}
    write_text(path, json.dumps(entry, indent=2) + "\n")
