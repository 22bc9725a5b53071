"""Run folders: cleanup after a killed run, unwritable folders, concurrent runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from toy_task import ToyTask, toy

from eligo.errors import InputError, OutputError
from eligo.train import FitResult, fit
from eligo.train.checkpoint import RunFolder, TrainState

KEEP_TWO = {"train": {"keep_checkpoints": 2}}


def test_invalid_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = toy(tmp_path / "file").config
    with pytest.raises(OutputError, match="cannot be written"):
        fit(config.build(), config.train)


def test_full_disk_is_reported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare(KEEP_TWO, TrainState())
    with pytest.raises(OutputError, match=r"No space left.*--resume"), folder.writing(3):
        raise OSError(28, "No space left on device")
    assert not folder.steps()


def test_old_checkpoints_are_removed_after_a_kill(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (4, 80, 85, 90):
        folder.checkpoint(step).mkdir(parents=True)
    folder.prepare(KEEP_TWO, TrainState(90, best_step=4))
    assert folder.steps() == [4, 85, 90]
    assert (tmp_path / "last").resolve() == folder.checkpoint(90).resolve()
    assert (tmp_path / "best").resolve() == folder.checkpoint(4).resolve()


def run(task: ToyTask, **options: Any) -> FitResult:
    return fit(task, task.config.train, **options)


def failing(out: Path, at: int, **changes: Any) -> ToyTask:
    """A task whose step `at` finds bad data."""
    task = toy(out, **changes)
    step = task.step

    def stepping(batch: Any, progress: Any) -> Any:
        if progress.step == at:
            raise InputError("a picture is torn")
        return step(batch, progress)

    task.step = stepping
    return task


def test_run_that_failed_before_its_first_checkpoint_can_restart(tmp_path: Path) -> None:
    """There is nothing to go on from, so the mended command must not be refused."""
    for changes in ({}, {"head__lr": 0.5}):
        with pytest.raises(InputError, match="torn"):
            run(failing(tmp_path, 2, **changes))
    with pytest.raises(InputError, match="torn"):
        run(failing(tmp_path, 6))  # checkpoints are after 4 steps
    with pytest.raises(InputError, match="already holds a run"):
        run(toy(tmp_path))
    assert run(toy(tmp_path), resume=True).last_step == 12
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if line["split"] == "train"]
    assert steps == list(range(1, 13))


@pytest.mark.parametrize(
    "bad", [b"\x94\xff\n", b"[" * 100_000 + b"\n", b"[]\n", b'{"step": "1"}\n']
)
def test_invalid_metrics_are_refused(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(InputError, match="torn"):
        run(failing(tmp_path, 6))
    (tmp_path / "run" / "metrics.jsonl").write_bytes(bad)
    with pytest.raises(InputError, match=r"metrics\.jsonl: not written by a run"):
        run(toy(tmp_path), resume=True)


def test_failure_leaves_other_runs_unchanged(tmp_path: Path) -> None:
    """A second process with --resume, before the first checkpoint of the first one."""
    task = toy(tmp_path)

    def after_step(*_: Any) -> None:
        task.after_step = lambda *_: None
        with pytest.raises(InputError, match="is writing there"):
            run(failing(tmp_path, 0), resume=True)
        assert (tmp_path / "run" / "config.yaml").is_file()

    task.after_step = after_step
    assert run(task).last_step == 12


def test_running_run_cannot_be_started_twice(tmp_path: Path) -> None:
    """Before its first checkpoint neither."""
    task = toy(tmp_path)

    def after_step(*_: Any) -> None:
        with pytest.raises(InputError, match="is writing there"):
            run(toy(tmp_path))

    task.after_step = after_step
    assert run(task).last_step == 12
