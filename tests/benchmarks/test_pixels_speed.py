"""The timing scripts run and write their results."""

import json
from pathlib import Path

import pytest
import torch

import eligo
from benchmarks.pixels import before, sizes, speed, speed_gpu
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


def test_versions_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(before, "RESULTS", tmp_path / "speed.json")
    source = Path(eligo.__file__).parents[1]
    flags = ["--source", str(source), "--passes", "1", "--threads", "1", *SMALL]
    assert run_script(before.run, flags) == 0
    (entry,) = json.loads((tmp_path / "speed.json").read_text()).values()
    assert entry["results"]["relative_difference"] == 0


def test_gpu_speed_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a CPU there are no graphs; what fails is recorded, and the rest is measured."""

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(speed_gpu, "RESULTS", tmp_path / "speed_gpu.json")
    monkeypatch.setattr(speed_gpu.Bench, "captured", fail)
    flags = ["--device", "cpu", "--batches", "1", "--no_compile", *SMALL]
    assert run_script(speed_gpu.run, flags) == 0
    found = json.loads((tmp_path / "speed_gpu.json").read_text())
    assert len(found) == len(speed_gpu.PRECISIONS)
    for name, entry in found.items():
        ways = entry["results"]["ways"]
        assert ways["model eligo captured"] == {"error": "RuntimeError: no memory"}
        assert ways["model plain eager"]["difference"] < (0.3 if "bfloat16" in name else 1e-3)
        assert ways["frame eligo captured"]["difference"] == 0
        ratios = ["encoder: eligo eager / plain eager", "model: eligo eager / plain eager"]
        assert list(entry["results"]["ratios"]) == ratios


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
