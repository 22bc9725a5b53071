"""The processes of a run, as `accelerate launch` (or nobody) started them.

Only accelerate's `PartialState` is used: it finds devices and process group on any machine. The
precision is the config's, and modules stay unwrapped (see `update`), so an `Accelerator` would
have nothing left to do.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from eligo.errors import InputError


def end(code: int = 0) -> None:
    """End a program that was launched as several processes, at once; nothing happens to others.

    Threads of torch's process group that let go of Python objects while the interpreter ends abort
    it now and then (3 of some 120 ends, torch 2.13 with gloo), after all the work was done.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Processes:
    """This process among its peers; every method is free when there is only one."""

    def __init__(self) -> None:
        self.state = PartialState()
        self.count: int = self.state.num_processes
        launched = os.environ.get("WORLD_SIZE", "1")
        if self.count == 1 and launched != "1":  # each would train alone, into the same folder
            raise InputError(
                f"got one of {launched} processes that do not know of each other; without a GPU "
                "set ACCELERATE_USE_CPU=true, so that they find each other"
            )
        self.index: int = self.state.process_index
        self.is_main: bool = self.state.is_main_process
        device = self.state.device
        self.device: torch.device = torch.device("cpu") if device is None else device

    def wait(self) -> None:
        """Return when all have come here."""
        self.state.wait_for_everyone()

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over the processes, in place."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def most(self, number: int) -> int:
        """The largest number of all processes."""
        if self.count > 1:
            tensor = torch.tensor(number, device=self.device)
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
            return int(tensor.item())
        return number

    def gathered(self, values: list[Any]) -> list[Any]:
        """The values of all processes, in one list."""
        return gather_object(values) if self.count > 1 else values

    def share_(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, in place."""
        if self.count > 1:
            torch.distributed.broadcast(tensor.detach(), 0)
        return tensor

    def of_first(self, value: Any) -> Any:
        """The first process's value, so that all decide alike."""
        return broadcast_object_list([value])[0] if self.count > 1 else value
