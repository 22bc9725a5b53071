"""Run a script in two processes, as `accelerate launch` starts them on two GPUs."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limits import PROCESS_SECONDS


@contextmanager
def two_processes(script: Path, *args: str | Path) -> Iterator[None]:
    """Starts both on entry; on exit waits for them and checks that they succeeded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # With the CPU flag, `accelerate launch` needs MPI; with the environment variable it starts
    # processes as for GPUs.
    launch = (
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        f"--mixed_precision no --dynamo_backend no --main_process_port {port}"
    )
    launched = subprocess.Popen(
        [sys.executable, *launch.split(), str(script), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    try:
        yield
        output, _ = launched.communicate(timeout=PROCESS_SECONDS)
        assert launched.returncode == 0, output
    finally:
        launched.kill()
