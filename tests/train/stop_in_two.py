"""Two processes, of which the second gets a signal: `stop_in_two.py OUT`."""

import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from toy_task import toy

from eligo.io.interrupts import Interrupted
from eligo.train import fit
from eligo.train.processes import end

if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = PartialState(cpu=True).process_index
    out = Path(sys.argv[1])
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
