"""Two processes give what one gives at the same global batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from toy_task import toy
from two_processes import OPTIONS

from eligo.train import fit


def test_two_processes_are_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("two_processes.py")
    # Told of CPUs by a flag, `accelerate launch` would want MPI; told by the environment, it starts
    # the processes as it does for GPUs.
    launch = (
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        f"--mixed_precision no --dynamo_backend no --main_process_port {port}"
    )
    launched = subprocess.Popen(
        [sys.executable, *launch.split(), str(script), str(tmp_path / "two")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    # A process seeds its part as an accumulated part is: with two of them even the noise is equal.
    task = toy(tmp_path / "one", train__gradient_accumulation=2, **OPTIONS)
    one = fit(task, task.config.train).folder
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode == 0, output

    two = tmp_path / "two" / "run"
    for file in (one / "last").resolve().rglob("*.safetensors"):
        other = load_file(two / "last" / file.relative_to((one / "last").resolve()))
        for key, value in load_file(file).items():
            torch.testing.assert_close(other[key], value, rtol=1e-5, atol=1e-7)
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, two)
    ]
    for first, second in zip(*lines, strict=True):
        assert (first["step"], first["split"]) == (second["step"], second["split"])
        assert abs(first["loss"] - second["loss"]) < 1e-5
