"""Two processes with half of each batch train like one process with all of it."""

import json
from pathlib import Path

import pytest
import torch
from patches_in_two import KINDS, main
from safetensors.torch import load_file

from two_processes import two_processes


def test_two_processes_equal_one(tmp_path: Path) -> None:
    with two_processes(Path(__file__).with_name("patches_in_two.py"), tmp_path / "two"):
        main(str(tmp_path / "one"))
    for kind in KINDS:
        _compare(tmp_path / "one" / kind, tmp_path / "two" / kind)


def _compare(one: Path, two: Path) -> None:
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, two)
    ]
    assert len(lines[0]) == 4  # one step with all violations, two with the hardest, one evaluation
    for first, second in zip(*lines, strict=True):
        for key in {"loss", "gradient_norm/all", "rsum"} & first.keys():
            assert first[key] == pytest.approx(second[key], rel=1e-4)
    # Adam divides by the size of the gradient: steps differ where that is only rounding error.
    weights = [load_file(run / "last" / "retriever.safetensors") for run in (one, two)]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-3, atol=2e-4)
