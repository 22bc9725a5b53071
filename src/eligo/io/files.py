"""Atomic output: files and folders are written in a hidden folder, then renamed.

All output of eligo goes through this module, so that these rules hold for every file:

- A file is written in a hidden folder beside its place, synced, then renamed. A failure leaves the
  older file as it was and removes what was written so far.
- Links are followed as `open` does; pipes and character devices are written through. Neither is
  ever replaced.
- A new file has the permissions that `open` would give it; an older one keeps its own.
- A full disk and every other failure to write is an `OutputError` that names the file.
"""

import errno
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

from eligo.errors import EligoError, InputError, OutputError
from eligo.io.reading import read_json

LOCK = ".eligo.lock"
"""The file that `eligo.io.locks.one_writer` locks in a folder."""
_UNFINISHED, _OLD = ".tmp", ".old"
_HIDDEN = ".eligo-"  # as in .eligo-0123456789ab.tmp
_MAX_NAME_BYTES = 200  # file systems allow 255, and suffixes are appended to names
_inputs: set[str] = set()  # files and folders that the running command reads
_log = logging.getLogger("eligo.io.files")


# ------------------------------------------------------------------ writing


@contextmanager
def keeping(inputs: Iterable[Path]) -> Iterator[None]:
    """Refuse output that would replace these files or folders, or a folder that holds them."""
    new = {os.path.realpath(path) for path in inputs if path.exists()} - _inputs
    _inputs.update(new)
    try:
        yield
    finally:
        _inputs.difference_update(new)


@contextmanager
def writing(path: str | Path, *, make_folder: bool = True, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to, which becomes `path` unless an error is raised.

    `sync` waits for the disk (some milliseconds), so that a power failure leaves no empty file.

    >>> with writing("runs/note.txt") as temporary:  # doctest: +SKIP
    ...     temporary.write_text("whole")
    """
    path = Path(path)
    with write_errors(path):
        target, is_stream = _target(path)
        _refuse_input(path, target)
        if make_folder and not path.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
        with _hidden_folder(Path(tempfile.gettempdir()) if is_stream else target.parent) as hidden:
            temporary = hidden / target.name
            mode = _mode(target if target.exists() and not is_stream else None, hidden)
            yield temporary
            if is_stream:
                _copy_into(temporary, path)
                return
            temporary.chmod(mode)
            if sync:
                sync_file(temporary)
            temporary.replace(target)


@contextmanager
def writing_folder(
    path: str | Path, *, marker: str, holds: Sequence[str] | None = None
) -> Iterator[Path]:
    """The same for a folder; an older one is replaced only if `refuse_strange` accepts it.

    >>> with writing_folder("runs/model", marker="config.yaml") as temporary:  # doctest: +SKIP
    ...     write_text(temporary / "config.yaml", "whole")
    """
    path = Path(path)
    refuse_strange(path, marker=marker, holds=holds)
    with write_errors(path):
        target = Path(os.path.realpath(path))  # a link stays, its target is replaced
        _refuse_input(path, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _hidden_folder(target.parent) as hidden:
            mode = _mode(None, hidden)
            temporary = hidden / target.name
            temporary.mkdir()
            try:
                yield temporary
            except OutputError as error:  # about a file in it: name its final place
                message = str(error).replace(str(temporary), str(path))
                raise OutputError(message) from error
            for folder, _, names in os.walk(temporary, topdown=False):
                for name in names:  # libraries that write files themselves choose other modes
                    Path(folder, name).chmod(mode)
                    sync_file(Path(folder, name))
                sync_file(Path(folder))
            _replace_folder(temporary, target)
            sync_file(target.parent)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (and make its folder)."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_bytes(path: str | Path, content: bytes, *, sync: bool = True) -> Path:
    """Write a file of bytes (and make its folder)."""
    with writing(path, sync=sync) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file with its dates (and make the folder)."""
    with writing(path, sync=False) as temporary:
        shutil.copy2(source, temporary)


def kept_json(path: Path, key: Any, make: Callable[[], Any]) -> Any:
    """Return the JSON stored in a file; recompute and write it if `key` has changed."""
    if path.is_file():
        stored = read_json(path)
        if isinstance(stored, dict) and {"key", "made"} <= stored.keys() and stored["key"] == key:
            return stored["made"]
    value = make()
    write_text(path, json.dumps({"key": key, "made": value}) + "\n")
    return value


class GrowingFile:
    """A file to append to, unbuffered, so that a killed process loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        """Append bytes."""
        with write_errors(self.path):
            while content:  # a nearly full disk takes a part
                content = content[self._file.write(content) :]

    def cut(self, size: int) -> None:
        """Drop what follows the first `size` bytes, such as half a line of a killed process."""
        with write_errors(self.path):
            os.ftruncate(self._file.fileno(), size)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        with write_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def make_folder(path: str | Path) -> Path:
    """Make a folder (and its parents), and make sure that files can be written there."""
    with write_errors(path):
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    return Path(path)


def replace_link(path: Path, to: Path) -> None:
    """Make the link `path`, or point it elsewhere; anything there but a link is refused."""
    with write_errors(path):
        if path.exists() and not path.is_symlink():
            raise FileExistsError(errno.EEXIST, "it is not a link: move it away")
        with _hidden_folder(path.parent) as hidden:
            (hidden / path.name).symlink_to(to)
            (hidden / path.name).replace(path)


def remove_file(path: Path) -> None:
    """Remove a file or a link, if it exists."""
    with write_errors(path):
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder (renamed first, so that it vanishes at once); of a link, only the link."""
    with write_errors(path):
        if path.is_symlink():
            path.unlink()
            return
        with _hidden_folder(path.parent) as hidden:
            path.rename(hidden / path.name)


def clear_unfinished(folder: Path) -> None:
    """Remove the unfinished output of killed processes, here and in subfolders.

    A folder whose replacement did not finish is put back. Links are not followed.
    """
    for parent, folders, _ in os.walk(folder):
        hidden = [name for name in folders if _is_ours(name)]
        folders[:] = [name for name in folders if name not in hidden]
        for path in (Path(parent, name) for name in hidden):
            if path.is_symlink():
                continue
            for old in path.iterdir() if path.suffix == _OLD else ():
                with write_errors(old):
                    if not _exists(Path(parent, old.name)):
                        old.rename(Path(parent, old.name))
            shutil.rmtree(path, ignore_errors=True)


# ------------------------------------------------------------------ checks


def refuse_strange(path: Path, *, marker: str, holds: Sequence[str] | None = None) -> None:
    """Raise unless a folder is new, empty, or one that eligo wrote.

    A folder that eligo wrote has the file `marker`, and only files that match the patterns `holds`
    (None: not checked, for folders in which nothing is replaced or removed).
    """
    with write_errors(path):
        if not path.exists():
            return
        if not path.is_dir():
            raise InputError(f"{path}: is a file, expected a folder; choose another path")
        if is_unused(path):
            return
        if not (path / marker).is_file():
            raise InputError(
                f"{path} already holds something else (there is no {marker} in it); choose another "
                "folder"
            )
        others = [] if holds is None else [f for f in _files_in(path) if not _matches(f, holds)]
    if others:
        raise InputError(
            f"{path} would be replaced, but also holds files that eligo did not write there "
            f"({', '.join(map(str, others[:3]))}{', ...' if others[3:] else ''}); choose "
            "another folder, or move them away"
        )


def is_unused(folder: Path) -> bool:
    """Whether a folder is empty, except for unfinished output and locks."""
    return all(_is_ours(inside.name) for inside in folder.iterdir())


def checked_name(name: str) -> str:
    """Return a name if it is valid for a file or folder and stays inside its parent."""
    if not name or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ValueError(
            "expected the name of one file or folder: not empty, without / or \\ or control "
            "characters, not beginning with a dot"
        )
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(
            f"expected a name of at most {_MAX_NAME_BYTES} bytes, this one has {len(name.encode())}"
        )
    return name


def check_file(path: Path) -> None:
    """Raise if a file could not be written, without writing it; for use before long work."""
    with write_errors(path):
        target, is_stream = _target(path)
        if not is_stream:
            check_folder(target.parent)


def check_folder(path: Path) -> None:
    """Raise if a folder could not be made or written to, without making it."""
    with write_errors(path):
        existing = next(parent for parent in (path, *path.absolute().parents) if _exists(parent))
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{existing} is write-protected")


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn failures to write, of Python and of safetensors, into an `OutputError` naming `path`."""
    try:
        yield
    except EligoError:
        raise  # names the file already
    except Exception as error:
        is_safetensors = type(error).__name__ == "SafetensorError"
        if not (isinstance(error, OSError) or is_safetensors or "embedded null" in str(error)):
            raise
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise OutputError(
            f"{path}: cannot be written ({why}); choose a place where you may write, with enough "
            "space"
        ) from error


def _refuse_input(path: Path, target: Path) -> None:
    real = os.path.realpath(target)
    if any(Path(used).is_relative_to(real) for used in _inputs):
        raise InputError(
            f"{path}: would be replaced by the output, but is an input of this command, or holds "
            "one; choose another --out"
        )


# ------------------------------------------------------------------ the file system


def _target(path: Path) -> tuple[Path, bool]:
    """Return the file that `open(path, "w")` would write, and whether it is a stream.

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
    """Whether a path such as /dev/stdout names an open file, which others may write to as well."""
    while path.is_symlink():
        if os.path.realpath(path.parent).startswith("/proc/"):
            return True
        path = path.parent / path.readlink()
    return False


def _copy_into(source: Path, stream: Path) -> None:
    """Write a whole file into a pipe or a device; wait until a process reads the pipe."""
    flags = os.O_WRONLY | os.O_APPEND
    try:
        opened = os.open(stream, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        _log.warning("%s: waiting for a process that reads it", stream)
        opened = os.open(stream, flags)
    os.set_blocking(opened, True)
    with os.fdopen(opened, "wb") as sink, source.open("rb") as content:
        shutil.copyfileobj(content, sink)


@contextmanager
def _hidden_folder(parent: Path, suffix: str = _UNFINISHED) -> Iterator[Path]:
    """Yield a hidden folder to write in, which is removed in the end."""
    hidden = parent / f"{_HIDDEN}{uuid4().hex[:12]}{suffix}"
    hidden.mkdir()
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _replace_folder(temporary: Path, target: Path) -> None:
    """Rename a folder to its place, where an older one may be."""
    if not target.exists():
        temporary.rename(target)
        return
    with _hidden_folder(target.parent, _OLD) as hidden:
        old = hidden / target.name
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            raise


def _mode(older: Path | None, folder: Path) -> int:
    """Return the permissions of the older file, or of a new one (by umask and ACLs)."""
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


def _is_ours(name: str) -> bool:
    """Whether a name is that of unfinished output or of a lock."""
    return name == LOCK or (name.startswith(_HIDDEN) and name.endswith((_UNFINISHED, _OLD)))


def _exists(path: Path) -> bool:
    """Whether a path exists, also as a broken link."""
    return path.exists() or path.is_symlink()


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders, relative to it; links count as files."""
    for parent, folders, names in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if not _is_ours(name)]
        for name in (*names, *linked):
            if not _is_ours(name):
                yield Path(parent, name).relative_to(folder)


def _matches(file: Path, patterns: Sequence[str]) -> bool:
    """Whether all parts of a path match those of one pattern."""
    return any(
        len(parts) == len(file.parts) and all(map(fnmatchcase, file.parts, parts))
        for parts in (pattern.split("/") for pattern in patterns)
    )
