"""One writer at a time: locks that the kernel releases when their process ends.

`flock` locks belong to an open file, so threads exclude each other as processes do. A forked
process closes the lock files that it inherits, so that it does not hold the locks. Without `flock`
(Windows, some network file systems) only threads of one process exclude each other.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eligo.errors import InputError
from eligo.io.files import LOCK, write_errors

try:
    import fcntl
except ImportError:
    fcntl = None

warnings_lock = threading.Lock()
"""Held while `warnings.catch_warnings` is entered or left: all threads share the filters."""
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_guard = threading.Lock()
_open: set[int] = set()  # descriptors of all locks of this process
_writers: set[str] = set()  # folders that threads of this process write to


class FileLock:
    """An exclusive lock on a file, which is created if needed."""

    def __init__(self, path: Path, opened: int) -> None:
        self.path, self._opened, self._process = path, opened, os.getpid()

    @classmethod
    def wait_for(cls, path: Path) -> "FileLock":
        """Wait until the lock is free, and acquire it."""
        lock = cls.acquire(path, wait=True)
        assert lock is not None
        return lock

    @classmethod
    def acquire(cls, path: Path, *, wait: bool = False) -> "FileLock | None":
        """Acquire the lock; None if it is held elsewhere and `wait` is False."""
        with write_errors(path):
            while True:
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    opened = os.open(path, _FLAGS, 0o666)
                except FileNotFoundError:
                    continue  # the previous holder has removed the empty folder
                with _guard:
                    _open.add(opened)
                lock = cls(path, opened)
                if not _flock(opened, wait=wait):
                    lock.release()
                    return None
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(opened), path.stat()):
                        return lock
                lock.release()  # the previous holder has removed the file: lock the new one

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; `remove` first removes the file, while it is still locked."""
        if os.getpid() != self._process:  # forked: the lock is the parent's
            return
        if remove:
            with suppress(OSError):
                self.path.unlink()
        with _guard:
            _open.discard(self._opened)
        os.close(self._opened)

    def sign(self) -> None:
        """Write the process id and the host, for error messages of other processes."""
        signed = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        with suppress(OSError):  # a full disk does not unlock it
            os.ftruncate(self._opened, 0)
            os.pwrite(self._opened, signed, 0)


@contextmanager
def one_writer(folder: str | Path) -> Iterator[Path]:
    """Make a folder and lock it: other writers get an `InputError`; readers need no lock.

    In the end the lock file is removed, and the folder too if nothing was written to it.
    """
    folder = Path(folder)
    key = os.path.realpath(folder)
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / LOCK
    with _guard:
        if key in _writers:
            raise _busy(folder, f"this process ({os.getpid()})")
        _writers.add(key)
    try:
        lock = FileLock.acquire(path)
        if lock is None:
            raise _busy(folder, _holder(path))
        lock.sign()
        try:
            yield folder
        finally:
            lock.release(remove=True)
            with suppress(OSError):  # stops at the first that is not empty
                for path in new_folders:
                    path.rmdir()
    finally:
        with _guard:
            _writers.discard(key)


def _busy(folder: Path, holder: str) -> InputError:
    return InputError(
        f"{folder}: {holder} is writing there; wait until it has ended, or choose another folder"
    )


def _holder(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip() or "another process"
    except (OSError, ValueError):
        return "another process"


def _flock(opened: int, *, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _forget() -> None:
    """Drop all locks in a forked process: they are its parent's."""
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it
    for opened in _open:
        with suppress(OSError):
            os.close(opened)
    _open.clear()
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
