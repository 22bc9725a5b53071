"""Two workers on one search, killed in the middle and started again."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from toy_task import ToyTask, toy

from eligo.train import Progress, StepOutput
from eligo.train.config import RangeConfig, SearchConfig
from eligo.train.search import run_search

SEARCH = SearchConfig(
    trials=7,
    space={"head.lr": RangeConfig(low=1e-4, high=1e-1, log=True), "width": [4, 8, 16]},
)


def worker(out: Path, hang: bool = False) -> int:
    """Fork a worker; it may hang in the middle of its first trial, to be killed there."""
    child = os.fork()
    if child == 0:
        original = ToyTask.step

        def step(self: ToyTask, batch: Any, progress: Progress) -> StepOutput:
            if hang and progress.step == 6:
                time.sleep(1000)
            return original(self, batch, progress)

        ToyTask.step = step
        run_search(toy(out, train__evaluate_every=12, train__checkpoint_every=5).config, SEARCH)
        os._exit(0)
    return child


def search_and_kill(out: Path) -> None:
    """Kill two workers once both have a checkpoint; two others finish the search."""
    torch.set_num_threads(1)
    import optuna  # noqa: F401 (once, not in every fork)

    first = [worker(out, hang=True), worker(out, hang=True)]
    while len(list((out / "run_search").glob("trial_*/last"))) < 2:  # both have a checkpoint
        time.sleep(0.02)
    for child in first:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    second = [worker(out), worker(out)]
    assert not any(os.waitpid(child, 0)[1] for child in second)
