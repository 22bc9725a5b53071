"""Run functions in forked processes, which share one import of torch and eligo.

They fork from a server that never runs a backward pass: torch cannot train in a fork of a process
that did. Annotations are not checked in them.
"""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from limits import PROCESS_SECONDS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch._dynamo", "torch.utils.tensorboard", "eligo.selection", "eligo.train.loop"]
)


def run_forked(function: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """Call a function in one process per tuple of arguments; all must exit with 0."""
    processes = [FORKS.Process(target=function, args=args) for args in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PROCESS_SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * len(calls)


def run_in_two(function: Callable[..., Any], *args: Any) -> None:
    """Call a function in two processes that train together, with the variables of a launcher."""
    run_forked(_launched, *((env, function, args) for env in launched()))


def launched() -> list[dict[str, str]]:
    """Variables that a launcher sets for two processes on a CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    return [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]


def _launched(env: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ |= env
    function(*args)
