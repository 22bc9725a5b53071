"""Trains the toy task in as many processes as were launched: `toy_in_two.py OUT`."""

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import PartialState
from toy_task import toy

from eligo.errors import InputError
from eligo.io.locks import one_writer
from eligo.train import fit
from eligo.train.processes import end

OPTIONS = {"train__log_every": 3, "train__ema_decay": 0.9}

if __name__ == "__main__":
    torch.set_num_threads(1)
    processes = PartialState(cpu=True)
    assert processes.num_processes == 2
    out = Path(sys.argv[1])
    task = toy(out, **OPTIONS)
    # Weights differ between processes until the loop shares those of the first.
    if not processes.is_main_process:
        for parameter in task.head.parameters():
            parameter.data.add_(1.0)
    # If the folder is taken, both hear of it.
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
