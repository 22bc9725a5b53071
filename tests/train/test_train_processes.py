"""Two processes give what one gives at the same global batch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_in_two import OPTIONS
from toy_task import toy

from eligo.errors import InputError
from eligo.train import fit
from eligo.train.processes import Processes, end
from two_processes import two_processes


def test_two_processes_are_one(tmp_path: Path) -> None:
    with two_processes(Path(__file__).with_name("toy_in_two.py"), tmp_path / "two"):
        # A process seeds its part as an accumulated part is: with two of them even the noise is
        # equal.
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


def test_only_programs_of_several_processes_end_at_once(monkeypatch) -> None:
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append("left"))
    end(3)
    assert ended == []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    end(3)
    assert ended == ["left", 3]


def test_processes_that_do_not_know_of_each_other(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one of 2 processes that do not know"):
        Processes()
