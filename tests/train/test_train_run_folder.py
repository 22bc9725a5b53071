"""A run folder finishes what a killed run left half done; one that cannot be written says so."""

from pathlib import Path

import pytest
from toy_task import toy

from eligo.errors import OutputError
from eligo.train import fit
from eligo.train.run_folder import RunFolder


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = toy(tmp_path / "file").config
    with pytest.raises(OutputError, match="no folder that can be written to"):
        fit(config.build(), config.train)


def test_a_full_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare({}, 0, None, keep=2)
    with pytest.raises(OutputError, match=r"No space left.*--resume"), folder.writing(3):
        raise OSError(28, "No space left on device")
    assert not folder.steps()


def test_a_run_killed_before_old_checkpoints_went(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (4, 80, 85, 90):
        folder.checkpoint(step).mkdir(parents=True)
    folder.prepare({}, 90, best=4, keep=2)
    assert folder.steps() == [4, 85, 90]
    assert (tmp_path / "last").resolve() == folder.checkpoint(90).resolve()
    assert (tmp_path / "best").resolve() == folder.checkpoint(4).resolve()
