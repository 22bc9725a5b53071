"""Any failing write gives one line; older checkpoints stay valid and the run resumes."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from toy_task import ToyTask, toy

import eligo.io.files
import eligo.io.tensors
from eligo.errors import ConfigError, OutputError
from eligo.train import fit
from eligo.train.checkpoint import RunFolder, TrainState
from eligo.train.config import TrainConfig
from eligo.train.weights import load_weights, save_weights

OPTIONS: dict[str, Any] = {
    "train__total_steps": 4,
    "train__log_every": 2,
    "train__evaluate_every": 2,
    "train__checkpoint_every": 2,
    "train__keep_checkpoints": 1,
    "train__ema_decay": 0.5,
}
FULL = "No space left on device"
_NEVER = 10**9
_EVERY = 13  # all of them, with 1, take a minute or two


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, FULL)


def full_for_tensors(*_: Any, **__: Any) -> Any:
    raise SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")


class Disk:
    """Counts the writes of eligo, and is full from the `fails_at`th on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.fails_at = 0, _NEVER
        for owner, name, error in (
            (Path, "write_text", full),
            (Path, "mkdir", full),
            (Path, "touch", full),
            (Path, "symlink_to", full),
            (eligo.io.files, "sync_file", full),
            (eligo.io.files.GrowingFile, "write", self._grow),
            (eligo.io.tensors, "save_file", full_for_tensors),
        ):
            write = (lambda *_: None) if name == "sync_file" else getattr(owner, name)
            monkeypatch.setattr(owner, name, self._counted(write, error))

    def _grow(self, file: Any, _: bytes) -> None:
        with eligo.io.files.write_errors(file.path):
            full()

    def _counted(self, write: Callable[..., Any], error: Callable[..., Any]) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return (error if self.count >= self.fails_at else write)(*args, **options)

        return counted

    @contextmanager
    def full_after(self, writes: int) -> Iterator[None]:
        self.count, self.fails_at = 0, writes + 1
        try:
            yield
        finally:
            self.fails_at = _NEVER


def run(task: ToyTask, **options: Any) -> None:
    fit(task, task.config.train, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.resolve().rglob("*.safetensors"))
    assert files
    return {f"{f.name} {key}": value for f in files for key, value in load_file(f).items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_every_failing_write_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    run(toy(tmp_path, "whole", **OPTIONS))
    writes, whole = disk.count, RunFolder(tmp_path / "whole")
    assert writes > 50
    expected = weights(whole.path / "best")
    for number in range(0, writes, _EVERY):
        folder = RunFolder(tmp_path / f"run{number}")
        with disk.full_after(number), pytest.raises(OutputError, match=FULL) as caught:
            run(toy(tmp_path, folder.path.name, **OPTIONS))
        assert "\n" not in str(caught.value)
        assert str(folder.path) in str(caught.value)
        for step in folder.steps():
            load_weights(folder.checkpoint(step), toy(tmp_path, "other", **OPTIONS).modules)
        run(toy(tmp_path, folder.path.name, **OPTIONS), resume=True)
        assert folder.steps() == whole.steps(), number
        assert same(weights(folder.path / "best"), expected), number
        leftovers = list(folder.path.rglob(".*"))
        assert not leftovers, (number, leftovers)


def test_files_of_a_run_follow_the_umask(tmp_path: Path) -> None:
    task = toy(tmp_path, **OPTIONS)
    run(task)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "plain").write_text("")
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}


@pytest.mark.parametrize("name", ["..", "../x", "/x", "a/b", "", "a\nb", "x" * 300])
def test_run_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.name"):
        toy(tmp_path, name)
    with pytest.raises(ValueError, match="expected"):
        TrainConfig(name=name)
    assert not list(tmp_path.iterdir())


def test_module_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the name"):
        save_weights(tmp_path / "here", {"../there": torch.nn.Linear(1, 1)})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_other_files_among_the_checkpoints_are_kept(tmp_path: Path) -> None:
    """Copies that a user made, files of the system, and a checkpoint moved to another disk."""
    run(toy(tmp_path, train__keep_checkpoints=3))
    folder = RunFolder(tmp_path / "run")
    steps = folder.steps()
    moved = folder.checkpoint(steps[0]).rename(tmp_path / "moved")
    folder.checkpoint(steps[0]).symlink_to(moved)
    (folder.checkpoints / "step_000004_good").mkdir()
    for name in (".DS_Store", "notes.txt"):
        (folder.checkpoints / name).write_text("mine")
    folder.prepare({"train": {"keep_checkpoints": 1}}, TrainState(steps[-1]))
    assert folder.steps() == steps[-1:]
    assert (moved / "config.yaml").is_file()
    left = {path.name for path in folder.checkpoints.iterdir()}
    assert left >= {".DS_Store", "notes.txt", "step_000004_good"}
