"""A folder has one writer at a time; a killed process releases its lock."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eligo.errors import InputError, OutputError
from eligo.io.files import refuse_strange, write_text
from eligo.io.locks import FileLock, one_writer

HOLD = """
import os, sys
from eligo.io.locks import one_writer
with one_writer(sys.argv[1]):
    if len(sys.argv) > 2 and os.fork() == 0:  # like a data-loader worker
        os.write(1, b"child\\n")
        os.read(0, 1)
        os._exit(0)
    os.write(1, b"held\\n")
    os.read(0, 1)
"""


def holder(folder: Path, *more: str) -> "subprocess.Popen[str]":
    """A process that locks a folder until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = {process.stdout.readline() for _ in range(1 + len(more))}
    assert "held\n" in lines
    return process


def test_second_process_is_refused_until_the_first_ends(tmp_path):
    with holder(tmp_path / "run") as first:
        message = rf"run: process {first.pid} on {socket.gethostname()} is writing there; wait"
        with pytest.raises(InputError, match=message), one_writer(tmp_path / "run"):
            pass
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(timeout=60) == 0
        with one_writer(tmp_path / "run"):
            pass


@pytest.mark.parametrize("more", [(), ("forks",)])
def test_killed_process_releases_its_lock(tmp_path, more):
    """Even if a forked child outlives it."""
    with holder(tmp_path / "run", *more) as first:
        first.kill()
        assert first.wait(timeout=60) == -signal.SIGKILL
        with one_writer(tmp_path / "run"):
            write_text(tmp_path / "run" / "file", "")
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["file"]


def test_threads_exclude_one_another(tmp_path):
    refused = []

    def second() -> None:
        try:
            with one_writer(tmp_path / "run"):
                pass
        except InputError as error:
            refused.append(str(error))

    with one_writer(tmp_path / "run"), one_writer(tmp_path / "other"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert f"this process ({os.getpid()}) is writing there" in refused[0]
    second()
    assert len(refused) == 1


def test_link_to_a_locked_folder_is_locked(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with (
        one_writer(tmp_path / "run"),
        pytest.raises(InputError, match="is writing there"),
        one_writer(tmp_path / "link"),
    ):
        pass


def test_lock_file_and_empty_folder_are_removed(tmp_path):
    with one_writer(tmp_path / "a" / "b"):
        refuse_strange(tmp_path / "a" / "b", marker="m")  # the lock file is ignored
    assert not (tmp_path / "a").exists()

    def fail() -> None:
        with one_writer(tmp_path / "a" / "b") as folder:
            write_text(folder / "kept", "")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["kept"]
    (tmp_path / "empty").mkdir()
    with one_writer(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()  # it existed before


def test_unwritable_folder_is_refused(tmp_path):
    write_text(tmp_path / "file", "")
    with pytest.raises(OutputError, match="cannot be written"), one_writer(tmp_path / "file"):
        pass
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".eligo.lock").symlink_to(tmp_path / "file")  # the link is not followed
    with pytest.raises(OutputError, match="cannot be written"), one_writer(tmp_path / "run"):
        pass
    assert (tmp_path / "file").read_text() == ""


def test_many_processes_exclude_one_another(tmp_path):
    """The lock file is created and removed repeatedly; no two processes hold it at once."""
    script = """
import os, sys, time
from pathlib import Path
from eligo.errors import InputError
from eligo.io.locks import one_writer
folder, held = Path(sys.argv[1]), 0
while held < 40:
    try:
        with one_writer(folder):
            os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
            os.unlink(folder / "inside")
            held += 1
    except InputError:
        time.sleep(0.001)
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")]) for _ in range(3)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]


def test_waiting_for_a_lock(tmp_path):
    first = FileLock.wait_for(tmp_path / "locks" / "study")
    assert FileLock.acquire(tmp_path / "locks" / "study") is None
    threading.Timer(0.05, first.release).start()
    FileLock.wait_for(tmp_path / "locks" / "study").release()
