"""Programs for two processes that train the toy task together."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import PartialState
from toy_task import toy

from eligo.errors import InputError
from eligo.io.interrupts import Interrupted
from eligo.io.locks import one_writer
from eligo.train import fit
from eligo.train.processes import end

OPTIONS = {"train__log_every": 3, "train__ema_decay": 0.9}


def train_in_two(out: Path) -> None:
    """Train, with a stop and a resume in between."""
    torch.set_num_threads(1)
    processes = PartialState(cpu=True)
    assert processes.num_processes == 2
    task = toy(out, **OPTIONS)
    # Weights differ between processes until the loop shares those of the first.
    if not processes.is_main_process:
        for parameter in task.head.parameters():
            parameter.data.add_(1.0)
    # If the folder is taken, both raise.
    with one_writer(out / "run") if processes.is_main_process else nullcontext():
        try:
            fit(task, task.config.train)
        except InputError as error:
            assert "is writing there" in str(error)  # noqa: PT017
        else:
            raise AssertionError
    stopped = fit(task, task.config.train, on_evaluate=lambda step, _: step == 4)
    task = toy(out, **OPTIONS)
    result = fit(task, task.config.train, resume=True)
    assert (stopped.ended, result.ended) == ("stopped", "total_steps")
    end()


def stop_in_two(out: Path) -> None:
    """Train; the second process gets a signal."""
    torch.set_num_threads(1)
    rank = PartialState(cpu=True).process_index
    task = toy(out)
    after_step = task.after_step

    def signalled(progress, optimizers):
        if progress.step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        after_step(progress, optimizers)

    task.after_step = signalled
    try:
        fit(task, task.config.train)
    except Interrupted as stop:
        (out / f"{rank}.txt").write_text(f"{stop.code} {stop}")
    task = toy(out)
    assert fit(task, task.config.train, resume=True).last_step == 12
    end()
