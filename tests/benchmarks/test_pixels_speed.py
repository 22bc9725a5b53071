"""The timing scripts run and write their results."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.pixels import sizes, speed
from eligo.cli import run_script
from eligo.pixels import Segmenter

SMALL = ["--size", "small", "--height", "64", "--width", "96", "--rounds", "1"]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_speed_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speed, "RESULTS", tmp_path / "speed.json")
    for batch in ("1", "2"):
        assert run_script(speed.run, [*SMALL, "--no_memory", "--batch", batch]) == 0
    found = json.loads((tmp_path / "speed.json").read_text())
    assert list(found) == [f"cpu float32 small 64x96 batch {batch}" for batch in (1, 2)]
    for entry in found.values():
        assert entry["results"]["model"]["largest_difference"] < 1e-3


def test_cost_of_depth_and_words_is_printed(capsys: pytest.CaptureFixture[str]):
    assert run_script(speed.run, [*SMALL, "--inputs"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["inputs"] for row in rows] == [
        "rgb", "rgb, depth", "rgb, words", "rgb, depth, words"
    ]  # fmt: skip
    assert rows[0]["over_rgb"] == 1


def test_sizes_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizes, "RESULTS", tmp_path / "sizes.json")
    monkeypatch.setattr(sizes, "SIZES", ((96, 128), (192, 256)))
    assert run_script(sizes.run, ["--rooms", "1"]) == 0
    rows = json.loads((tmp_path / "sizes.json").read_text())["rows"]
    assert [row["scaled to"] for row in rows] == [[96, 128], [192, 256], [96, 128]]
    assert rows[0]["right"] == sizes.object_accuracy(
        Segmenter.from_pretrained(), 1, (96, 128), None
    )
