"""Files that are whole or not there (written aside, then renamed). For reading, see `reading`.

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
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eligo.errors import EligoError, InputError, OutputError
from eligo.io.file_system import (
    OLD,
    aside,
    copy_into,
    files_in,
    is_ours,
    is_there,
    matches,
    mode_of,
    put,
    sync_file,
    target_of,
)
from eligo.io.reading import read_json

_inputs: set[str] = set()  # files and folders that the running command reads
_MAX_NAME_BYTES = 200  # file systems allow 255; what is appended to a name needs some of them


@contextmanager
def keeping(inputs: Iterable[Path]) -> Iterator[None]:
    """Meanwhile no output replaces these files or folders, nor a folder that they are in."""
    new = {os.path.realpath(path) for path in inputs if path.exists()} - _inputs
    _inputs.update(new)
    try:
        yield
    finally:
        _inputs.difference_update(new)


@contextmanager
def writing(path: str | Path, *, make_folder: bool = True, sync: bool = True) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` if nothing went wrong, else it goes.

    `sync` waits for the disk (some milliseconds), so that a power failure leaves no empty file.

    >>> with writing("runs/note.txt") as temporary:  # doctest: +SKIP
    ...     temporary.write_text("whole")
    """
    path = Path(path)
    with write_errors(path):
        target, is_stream = target_of(path)
        _refuse_input(path, target)
        if make_folder and not path.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
        with aside(Path(tempfile.gettempdir()) if is_stream else target.parent) as hidden:
            temporary = hidden / target.name
            mode = mode_of(target if target.exists() and not is_stream else None, hidden)
            yield temporary
            if is_stream:
                copy_into(temporary, path)
                return
            temporary.chmod(mode)
            if sync:
                sync_file(temporary)
            temporary.replace(target)


@contextmanager
def writing_folder(
    path: str | Path, *, marker: str, holds: Sequence[str] | None = None
) -> Iterator[Path]:
    """The same for a folder; an older one is replaced only if `refuse_strange` lets it pass.

    >>> with writing_folder("runs/model", marker="config.yaml") as temporary:  # doctest: +SKIP
    ...     write_text(temporary / "config.yaml", "whole")
    """
    path = Path(path)
    refuse_strange(path, marker=marker, holds=holds)
    with write_errors(path):
        target = Path(os.path.realpath(path))  # a link stays, and the folder that it names changes
        _refuse_input(path, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with aside(target.parent) as hidden:
            mode = mode_of(None, hidden)
            temporary = hidden / target.name
            temporary.mkdir()
            try:
                yield temporary
            except OutputError as error:  # of a file in it: told by the name that it was to get
                told = str(error).replace(str(temporary), str(path))
                raise OutputError(told) from error
            for folder, _, names in os.walk(temporary, topdown=False):
                for name in names:  # libraries that write files of their own choose other modes
                    Path(folder, name).chmod(mode)
                    sync_file(Path(folder, name))
                sync_file(Path(folder))
            put(temporary, target)
            sync_file(target.parent)


def _refuse_input(path: Path, target: Path) -> None:
    real = os.path.realpath(target)
    if any(Path(used).is_relative_to(real) for used in _inputs):
        raise InputError(
            f"{path}: would be replaced by the output, but is an input of this command, or holds "
            "one; choose another --out"
        )


def refuse_strange(path: Path, *, marker: str, holds: Sequence[str] | None = None) -> None:
    """Raise if a folder is neither new, nor empty, nor one that eligo wrote.

    One that eligo wrote has the file `marker`, and nothing but what the patterns `holds` match
    (None: this is not checked, for folders in which nothing is replaced or removed).
    """
    with write_errors(path):
        if not path.exists():
            return
        if not path.is_dir():
            raise InputError(f"{path}: is a file, expected a folder; choose another one")
        if is_unused(path):
            return
        if not (path / marker).is_file():
            raise InputError(
                f"{path} already holds something else (there is no {marker} in it); choose another "
                "one"
            )
        strangers = [] if holds is None else [f for f in files_in(path) if not matches(f, holds)]
    if strangers:
        raise InputError(
            f"{path} would be replaced, but also holds files that eligo did not write there "
            f"({', '.join(map(str, strangers[:3]))}{', ...' if strangers[3:] else ''}); choose "
            "another folder, or move them away"
        )


def is_unused(folder: Path) -> bool:
    """Whether a folder is empty, but for what a killed process left."""
    return all(is_ours(inside.name) for inside in folder.iterdir())


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (and the folder it is in)."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_bytes(path: str | Path, content: bytes, *, sync: bool = True) -> Path:
    """Write a file of bytes (and the folder it is in)."""
    with writing(path, sync=sync) as temporary:
        temporary.write_bytes(content)
    return Path(path)


class GrowingFile:
    """A file that is appended to; what was written is there, whatever happens next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        """Append, not by way of a buffer."""
        with write_errors(self.path):
            while content:  # a nearly full disk takes a part
                content = content[self._file.write(content) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def replace_link(path: Path, to: Path) -> None:
    """Make the link `path`, or point it elsewhere; anything there but a link is refused."""
    with write_errors(path):
        if path.exists() and not path.is_symlink():
            raise FileExistsError(errno.EEXIST, "it is not a link: move it away")
        with aside(path.parent) as hidden:
            (hidden / path.name).symlink_to(to)
            (hidden / path.name).replace(path)


def remove_file(path: Path) -> None:
    """Remove a file or a link, if it is there."""
    with write_errors(path):
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, never half of it under its name; of a link to a folder only the link."""
    with write_errors(path):
        if path.is_symlink():
            path.unlink()
            return
        with aside(path.parent) as hidden:
            path.rename(hidden / path.name)


def checked_name(name: str) -> str:
    """A name that becomes a file or a folder, if it can be one and stays inside its folder."""
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


def kept_json(path: Path, key: Any, make: Callable[[], Any]) -> Any:
    """What a file holds, made and written anew if anything it depends on, `key`, has changed."""
    if path.is_file():
        found = read_json(path)
        if isinstance(found, dict) and {"key", "made"} <= found.keys() and found["key"] == key:
            return found["made"]
    made = make()
    write_text(path, json.dumps({"key": key, "made": made}) + "\n")
    return made


def make_folder(path: str | Path) -> Path:
    """Make a folder (and those it is in), and make sure that files can be written there."""
    with write_errors(path):
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    return Path(path)


def check_file(path: Path) -> None:
    """Refuse a file that could not be written, without writing; for use before long work."""
    with write_errors(path):
        target, is_stream = target_of(path)
        if not is_stream:
            check_folder(target.parent)


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be made or written to, without making it."""
    with write_errors(path):
        existing = next(place for place in (path, *path.absolute().parents) if is_there(place))
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{existing} is write-protected")


def clear_unfinished(folder: Path) -> None:
    """Remove what a killed process left of all that it was `writing`, here and in subfolders.

    A folder that was about to be replaced, and was not, is put back. Links are not followed.
    """
    for place, folders, _ in os.walk(folder):
        hidden = [name for name in folders if is_ours(name)]
        folders[:] = [name for name in folders if name not in hidden]
        for found in (Path(place, name) for name in hidden):
            if found.is_symlink():
                continue
            for old in found.iterdir() if found.suffix == OLD else ():
                with write_errors(old):
                    if not is_there(Path(place, old.name)):
                        old.rename(Path(place, old.name))
            shutil.rmtree(found, ignore_errors=True)


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Failures to write, Python's and those of safetensors, as one line that names `path`."""
    try:
        yield
    except EligoError:
        raise  # it names the file already
    except OSError as error:
        raise _unwritable(path, error.strerror or error) from error
    except Exception as error:
        if type(error).__name__ == "SafetensorError" or "embedded null" in str(error):
            raise _unwritable(path, error) from error
        raise


def _unwritable(path: str | Path, why: Any) -> OutputError:
    """Of a file as of a folder: who gave a folder may hear of a file in it."""
    return OutputError(
        f"{path}: cannot be written ({' '.join(str(why).split())}); choose a place where you may "
        "write, with room left"
    )
