"""Processes that help with the runs of a study."""

import os
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from benchmarks.studies import helpers


def load_with_workers(folder: Path) -> None:
    """Read data with a worker process, as trainings do."""
    values = [int(batch) for batch in DataLoader(range(3), num_workers=1)]  # pyright: ignore[reportArgumentType]
    (folder / str(os.getpid())).write_text(str(values))


def wait_for_ever(folder: Path) -> None:
    (folder / "started").touch()
    while True:
        time.sleep(1)


def test_helpers_can_start_the_workers_of_a_data_loader(tmp_path: Path):
    with helpers(2, load_with_workers, tmp_path):
        pass
    assert [path.read_text() for path in tmp_path.iterdir()] == ["[0, 1, 2]"] * 2


def fail_after_start(folder: Path) -> None:
    with helpers(1, wait_for_ever, folder):
        while not (folder / "started").exists():
            time.sleep(0.1)
        raise KeyError


def test_helpers_end_with_a_failure_of_the_block(tmp_path: Path):
    with pytest.raises(KeyError):
        fail_after_start(tmp_path)
