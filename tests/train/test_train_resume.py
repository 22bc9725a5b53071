"""A run killed at any moment resumes to the same losses and weights, bit for bit."""

import json
from pathlib import Path
from typing import Any

import torch
from kill_run import OPTIONS, PLACES, train_and_kill
from safetensors.torch import load_file
from toy_task import toy

from eligo.train import fit
from forks import run_forked


def timeless(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "steps_per_second")}
        for line in path.read_text().splitlines()
    ]


def test_killed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    run_forked(train_and_kill, (tmp_path / "broken",))
    assert int((tmp_path / "broken" / "killed.txt").read_text()) >= len(PLACES)
    task = toy(tmp_path / "whole", **OPTIONS)
    whole = fit(task, task.config.train).folder

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
