"""A run killed at any moment resumes to the same losses and weights, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from kill_run import OPTIONS, PLACES
from safetensors.torch import load_file
from toy_task import toy

from eligo.train import fit
from limits import PROCESS_SECONDS


def timeless(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "steps_per_second")}
        for line in path.read_text().splitlines()
    ]


def test_killed_runs_repeat_the_unbroken_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_run.py")
    broken = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "broken")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    task = toy(tmp_path / "whole", **OPTIONS)
    whole = fit(task, task.config.train).folder
    output, errors = broken.communicate(timeout=PROCESS_SECONDS)
    assert broken.returncode == 0, errors
    assert int(output.split()[-1]) >= len(PLACES), output

    folder = tmp_path / "broken" / "run"
    assert timeless(folder / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    for link in ("best", "last"):
        assert (folder / link).resolve().name == (whole / link).resolve().name
        for file in (whole / link).resolve().rglob("*.safetensors"):
            other = folder / link / file.relative_to((whole / link).resolve())
            for key, value in load_file(file).items():
                assert torch.equal(value, load_file(other)[key]), (file.name, key)
    names = [sorted(path.name for path in (f / "checkpoints").iterdir()) for f in (folder, whole)]
    assert names[0] == names[1]
