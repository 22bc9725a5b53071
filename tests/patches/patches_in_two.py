"""Started by `test_patches_ddp` in two processes: runs in the given folder."""

import sys
from pathlib import Path

import torch
from accelerate import PartialState
from patch_models import smoke

from eligo.train.processes import end

OPTIONS = {
    "train__total_steps": 3, "train__batch_size": 4, "train__log_every": 1,
    "train__evaluate_every": 3, "ramp": 0.3, "hardest_after": 0.3,
    "model__match__dense": True, "centre_heads": True,
}  # fmt: skip


KINDS = ("paper",)


def main(folder: str) -> None:
    from eligo.patches.training.task import train_model

    for kind in KINDS:
        options = {"train__out": Path(folder), "train__name": kind, "model__match__kind": kind}
        train_model(smoke(**options, **OPTIONS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert PartialState(cpu=True).num_processes == 2
    main(*sys.argv[1:])
    end()
