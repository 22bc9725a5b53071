"""Trains the toy task while it is killed repeatedly.

Every attempt is a fork. Attempts are killed at named places (inside a step, at every stage of
writing a checkpoint) and at random times; the last one completes.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from toy_task import ToyTask, toy

import eligo.io.files
import eligo.io.tensors
import eligo.train.checkpoint
import eligo.train.loop
from eligo.train import fit

OPTIONS = {
    "train__total_steps": 90,
    "train__log_every": 3,
    "train__evaluate_every": 4,
    "train__checkpoint_every": 5,
    "train__ema_decay": 0.9,
    "train__gradient_accumulation": 2,
    "nonfinite_steps": [7],
}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner: Any, name: str, number: int, *, after: bool = False) -> Callable[[], None]:
    """Arrange to die at the given call of a function, before or after it."""

    def arrange() -> None:
        original, calls = getattr(owner, name), iter(range(1, 10**6))

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            last = next(calls) == number
            if last and not after:
                die()
            result = original(*args, **kwargs)
            if last:
                die()
            return result

        setattr(owner, name, wrapped)

    return arrange


FOLDER = eligo.train.checkpoint.RunFolder
STATE = eligo.train.checkpoint.RunState
PLACES = [
    at_call(ToyTask, "step", 1),
    at_call(eligo.train.loop.MetricLog, "write", 1, after=True),
    at_call(eligo.io.tensors, "save_file", 2),
    at_call(eligo.io.tensors, "save_file", 1, after=True),
    at_call(Path, "replace", 3),
    at_call(Path, "replace", 3, after=True),
    at_call(Path, "rename", 1),
    at_call(Path, "rename", 1, after=True),
    at_call(Path, "symlink_to", 1, after=True),
    at_call(eligo.train.checkpoint, "remove_folder", 1),
    at_call(eligo.io.files.shutil, "rmtree", 2),
    at_call(eligo.io.files.shutil, "rmtree", 20),
    at_call(FOLDER, "prepare", 1, after=True),
    at_call(ToyTask, "evaluate", 1, after=True),
    at_call(eligo.train.loop.MetricLog, "write", 2),
    at_call(ToyTask, "evaluate", 1),
    at_call(STATE, "save_train_state", 1),
    at_call(STATE, "save_train_state", 1, after=True),
    at_call(FOLDER, "settle", 2),
]


def attempt(out: Path, arrange: Callable[[], None]) -> int:
    """Fork, train and return the child's process id."""
    child = os.fork()
    if child == 0:
        arrange()
        task = toy(out, **OPTIONS)
        fit(task, task.config.train, resume=True)
        os._exit(0)
    return child


def train_and_kill(out: Path) -> None:
    """Kill a run at all places and more; write the number of kills to `killed.txt`."""
    torch.set_num_threads(1)
    killed = 0
    for place in PLACES:
        killed += os.waitpid(attempt(out, place), 0)[1] == signal.SIGKILL
        child = attempt(out, lambda: None)
        time.sleep(random.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    status = os.waitpid(attempt(out, lambda: None), 0)[1]
    (out / "killed.txt").write_text(str(killed))
    assert status == 0
