"""Trains the toy task in as many processes as were launched: `toy_in_two.py OUT`."""

import sys
from pathlib import Path

import torch
from accelerate import PartialState
from toy_task import toy

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
    stopped = fit(task, task.config.train, on_evaluate=lambda step, _: step == 4)
    task = toy(out, **OPTIONS)
    result = fit(task, task.config.train, resume=True)
    assert (stopped.ended, result.ended) == ("stopped", "total_steps")
    end()
