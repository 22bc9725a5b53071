"""A run folder that cannot be written is the user's to mend, and said to be."""

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
    folder.prepare({}, 0, None)
    with pytest.raises(OutputError, match=r"No space left.*--resume"), folder.writing(3):
        raise OSError(28, "No space left on device")
    assert not folder.steps()
