"""The processes of a run, started by `accelerate launch` or alone.

Only accelerate's `PartialState` is used, to find the device and the process group: precision comes
from the config and modules stay unwrapped (see `optimization`).
"""

import os
import sys
from typing import Any

import torch
import torch.distributed
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, parse_flag_from_env
from torch import Tensor

from eligo.errors import InputError


def end(code: int = 0) -> None:
    """Exit at once if the program runs in several processes; otherwise do nothing.

    At a normal exit, threads of torch's process group sometimes abort the interpreter after all
    work is done (3 of some 120 exits, torch 2.13 with gloo).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Processes:
    """This process and the others of the run; with one process, the methods do nothing."""

    def __init__(self) -> None:
        # `Accelerator` reads this variable, `PartialState` does not.
        self.state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
        self.count: int = self.state.num_processes
        launched = os.environ.get("WORLD_SIZE", "1")
        if self.count == 1 and launched != "1":  # all would train into the same folder
            raise InputError(
                f"this is one of {launched} processes that are not connected; without a GPU, set "
                "ACCELERATE_USE_CPU=true to connect them"
            )
        self.index: int = self.state.process_index
        self.is_main: bool = self.state.is_main_process
        device = self.state.device
        self.device: torch.device = torch.device("cpu") if device is None else device

    def wait(self) -> None:
        """Wait for all processes."""
        self.state.wait_for_everyone()

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over the processes, in place."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def most(self, number: int) -> int:
        """Return the largest number of all processes."""
        if self.count > 1:
            tensor = torch.tensor(number, device=self.device)
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
            return int(tensor.item())
        return number

    def gathered(self, values: list[Any]) -> list[Any]:
        """Return the values of all processes in one list."""
        return gather_object(values) if self.count > 1 else values

    def share_(self, tensor: Tensor) -> Tensor:
        """Copy the first process's tensor, in place."""
        if self.count > 1:
            torch.distributed.broadcast(tensor.detach(), 0)
        return tensor

    def of_first(self, value: Any) -> Any:
        """Return the first process's value, so that all make the same decision."""
        return broadcast_object_list([value])[0] if self.count > 1 else value
