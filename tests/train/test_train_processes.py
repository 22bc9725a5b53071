"""Two processes give the same result as one with the same global batch."""

import json
from pathlib import Path

import pytest
import torch
from in_two import OPTIONS, train_in_two
from safetensors.torch import load_file
from toy_task import toy

from eligo.errors import InputError
from eligo.train import fit
from eligo.train.processes import Processes, end
from forks import run_in_two


def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_two(train_in_two, tmp_path / "two")
    # Processes and accumulated parts are seeded alike, so even the noise is equal.
    task = toy(tmp_path / "one", train__gradient_accumulation=2, **OPTIONS)
    one = fit(task, task.config.train).folder

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
    log = (two / "training.log").read_text()  # of the first process only
    assert [log.count(part) for part in ("run run starts", "is resumed", "step 6/12,")] == [1] * 3


def test_only_programs_with_several_processes_exit_at_once(monkeypatch) -> None:
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append("left"))
    end(3)
    assert ended == []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    end(3)
    assert ended == ["left", 3]


def test_unconnected_processes_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one of 2 processes that are not connected"):
        Processes()
