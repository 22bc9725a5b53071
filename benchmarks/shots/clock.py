"""Two ways of doing one thing, in turn: a busy machine slows both."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

Run = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second is, by the median of rounds."""

    slow_ms: float
    fast_ms: float
    speedup: float
    lowest: float
    """Of any round."""


def compare(slow: Run, fast: Run, *, device: torch.device | str, rounds: int = 15) -> Ratio:
    """Both, `rounds` times in turn. On a CPU in processor time, which other programs disturb
    less."""
    times = in_turn({"slow": slow, "fast": fast}, device=device, rounds=rounds)
    ratios = [a / b for a, b in zip(times["slow"], times["fast"], strict=True)]
    slow_ms, fast_ms = (1000 * median(times[name]) for name in ("slow", "fast"))
    return Ratio(slow_ms, fast_ms, slow_ms / fast_ms, min(ratios))


def in_turn(
    runs: Mapping[str, Run], *, device: torch.device | str, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each run in each round, after two rounds to warm up."""
    cuda = torch.device(device).type == "cuda"
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name, run in runs.items():
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter() if cuda else time.process_time()
            run()
            if cuda:
                torch.cuda.synchronize()
            end = time.perf_counter() if cuda else time.process_time()
            if number >= 2:
                times[name].append(end - start)
    return times
