"""Two processes, each with half of the images and texts, train as one with all of them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patch_two_processes import KINDS, main
from safetensors.torch import load_file


def test_two_processes_are_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("patch_two_processes.py")
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
    main(str(tmp_path / "one"))
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode == 0, output

    for kind in KINDS:
        _compare(tmp_path / "one" / kind, tmp_path / "two" / kind)


def _compare(one: Path, two: Path) -> None:
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, two)
    ]
    assert len(lines[0]) == 4  # a step of all violations, two of the hardest, an evaluation
    for first, second in zip(*lines, strict=True):
        for key in {"loss", "gradient_norm/all", "rsum"} & first.keys():
            assert first[key] == pytest.approx(second[key], rel=1e-4)
    # Adam divides by the gradient's size: where that is mere rounding its steps may differ.
    weights = [load_file(run / "last" / "retriever.safetensors") for run in (one, two)]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-3, atol=2e-4)
