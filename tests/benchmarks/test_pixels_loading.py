"""The timing of training from files runs and writes its result."""

import json
from pathlib import Path

import pytest

from benchmarks.pixels import loading
from eligo.cli import run_script

SMALL = ["--num_images", "20", "--height", "32", "--width", "48", "--batch_size", "4",
         "--steps", "2", "--json"]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "counts"), [(["--num_workers", "1"], [0, 1]), (["--num_workers", "0"], [0])]
)
def test_loading_command_runs(
    flags: list[str], counts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(loading, "RESULTS", tmp_path / "loading.json")
    assert run_script(loading.run, [*SMALL, *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["from files, steps a second"]
    assert [row["workers"] for row in rows] == counts
    assert all(row["batches"] > 0 and row["training"] > 0 for row in rows)
    speedup = found["summary"]["training with workers, of that without"]
    assert speedup == pytest.approx(rows[-1]["training"] / rows[0]["training"])
    (entry,) = json.loads((tmp_path / "loading.json").read_text()).values()
    assert entry["results"] == found


def test_one_batch_is_repeated(tmp_path: Path):
    data = loading._write_files(tmp_path / "rooms", 12, 32, 48)
    config = loading.load_config(loading.PixelsTrainConfig, "pixels/scenes").smoke()
    task = loading.OneBatchTask(config.replace({"data": data, "train.batch_size": 2}))
    stream = task.batches(0, 0, 1, task.device)
    assert next(stream) is next(stream)
