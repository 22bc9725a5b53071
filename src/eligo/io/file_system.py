"""What `eligo.io.files` does to the file system; use that module."""

import errno
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import uuid4

LOCK = ".eligo.lock"
"""The file that `eligo.io.locks.one_writer` locks in a folder."""
UNFINISHED, OLD = ".tmp", ".old"
_HIDDEN = ".eligo-"  # as in .eligo-0123456789ab.tmp

logger = logging.getLogger("eligo.io.files")


def target_of(path: Path) -> tuple[Path, bool]:
    """The file that `open(path, "w")` would write, and whether it is a stream.

    A stream is written through: a pipe, a character device, or an open file under /dev/fd.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.is_symlink():
            return path, False
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, f"it links to {target}, and {target.parent} is missing"
            ) from None
        return target, False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, expected a file")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise OSError(errno.EINVAL, "it is a block device or a socket, expected a file")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected")
    if not stat.S_ISREG(mode) or _is_descriptor(path):
        return path, True
    return Path(os.path.realpath(path)), False


def _is_descriptor(path: Path) -> bool:
    """Whether a path (/dev/stdout, say) names an open file: others write to it too."""
    while path.is_symlink():
        if os.path.realpath(path.parent).startswith("/proc/"):
            return True
        path = path.parent / path.readlink()
    return False


def copy_into(source: Path, stream: Path) -> None:
    """Write a whole file into a pipe or a device; for a pipe nobody reads yet, wait."""
    flags = os.O_WRONLY | os.O_APPEND
    try:
        opened = os.open(stream, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        logger.warning("%s: waiting for a process that reads it", stream)
        opened = os.open(stream, flags)
    os.set_blocking(opened, True)
    with os.fdopen(opened, "wb") as sink, source.open("rb") as content:
        shutil.copyfileobj(content, sink)


@contextmanager
def aside(folder: Path, suffix: str = UNFINISHED) -> Iterator[Path]:
    """A hidden folder to write in, removed in the end.

    Libraries that write under temporary names of their own leave nothing elsewhere.
    """
    hidden = folder / f"{_HIDDEN}{uuid4().hex[:12]}{suffix}"
    hidden.mkdir()
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def put(temporary: Path, target: Path) -> None:
    """Rename a folder to its place, where an older one may be."""
    if not target.exists():
        temporary.rename(target)
        return
    with aside(target.parent, OLD) as hidden:
        old = hidden / target.name
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            raise


def mode_of(older: Path | None, folder: Path) -> int:
    """Permissions of a file: its own, or what `open` gives a new one (the umask, and ACLs)."""
    if older is not None:
        return stat.S_IMODE(older.stat().st_mode)
    probe = folder / "new"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode


def sync_file(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError:
        if not path.is_dir():  # not all file systems sync folders
            raise
    finally:
        os.close(opened)


def is_ours(name: str) -> bool:
    """Whether a name is one that only this module gives: unfinished work, or a lock."""
    return name == LOCK or (name.startswith(_HIDDEN) and name.endswith((UNFINISHED, OLD)))


def is_there(path: Path) -> bool:
    """Whether there is something, be it a link to nothing."""
    return path.exists() or path.is_symlink()


def files_in(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders, relative to it; links count as files."""
    for place, folders, names in os.walk(folder):
        inside = Path(place)
        linked = [name for name in folders if (inside / name).is_symlink()]
        folders[:] = [name for name in folders if not is_ours(name)]
        for name in (*names, *linked):
            if not is_ours(name):
                yield (inside / name).relative_to(folder)


def matches(file: Path, patterns: Sequence[str]) -> bool:
    """Whether all parts of a path match those of one pattern."""
    wanted = (pattern.split("/") for pattern in patterns)
    return any(
        len(parts) == len(file.parts) and all(map(fnmatchcase, file.parts, parts))
        for parts in wanted
    )
