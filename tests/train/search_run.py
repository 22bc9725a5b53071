"""Two workers on one search, killed in the middle and started again."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from toy_task import ToyTask, toy

from eligo.train import Progress, StepOutput
from eligo.train.config import RangeConfig, SearchConfig
from eligo.train.processes import end
from eligo.train.search import run_search
from forks import launched

SEARCH = SearchConfig(
    trials=7,
    space={"head.lr": RangeConfig(low=1e-4, high=1e-1, log=True), "width": [4, 8, 16]},
)

NO_ENV: Mapping[str, str] = {}


def worker(
    out: Path, hang: bool = False, search: SearchConfig = SEARCH, env: Mapping[str, str] = NO_ENV
) -> int:
    """Fork a worker; it may hang in the middle of its first trial, to be killed there."""
    child = os.fork()
    if child == 0:
        os.environ |= env
        original = ToyTask.step

        def step(self: ToyTask, batch: Any, progress: Progress) -> StepOutput:
            if hang and progress.step == 6:
                time.sleep(1000)
            return original(self, batch, progress)

        ToyTask.step = step
        run_search(toy(out, train__evaluate_every=12, train__checkpoint_every=5).config, search)
        end()
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


def search_in_two_and_kill(out: Path) -> None:
    """Kill a worker of two processes in its trial; another one of two processes finishes it."""
    torch.set_num_threads(1)
    import optuna  # noqa: F401

    search = SEARCH.replace({"trials": 1})
    first = [worker(out, True, search, env) for env in launched()]
    while not list((out / "run_search").glob("trial_*/last")):
        time.sleep(0.02)
    for child in first:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    second = [worker(out, False, search, env) for env in launched()]
    assert not any(os.waitpid(child, 0)[1] for child in second)
