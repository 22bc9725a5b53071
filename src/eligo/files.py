"""Files that are whole or not there: written aside, then renamed. For reading, see `reading`."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

from eligo.errors import InputError, OutputError
from eligo.reading import numbered_lines as numbered_lines
from eligo.reading import read_json
from eligo.reading import read_text as read_text

_UNFINISHED = ".*.tmp"  # names of what is being written


@contextmanager
def writing(path: str | Path, *, make_folder: bool = True) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` if nothing went wrong, else it goes.

    >>> with writing("runs/note.txt") as temporary:  # doctest: +SKIP
    ...     temporary.write_text("whole")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # mostly renamed by now, and its folder may be no folder
            temporary.unlink()


@contextmanager
def writing_folder(path: str | Path, *, marker: str) -> Iterator[Path]:
    """The same for a folder; an older one is replaced if it has the file `marker`, else refused.

    >>> with writing_folder("runs/model", marker="config.yaml") as temporary:  # doctest: +SKIP
    ...     write_text(temporary / "config.yaml", "whole")
    """
    path = Path(path)
    refuse_strange(path, marker=marker)
    hidden = f".{path.name}.{uuid4().hex[:12]}"
    old, temporary = path.with_name(f"{hidden}.old"), path.with_name(f"{hidden}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except OutputError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_strange(path: Path, *, marker: str) -> None:
    """Raise where `writing_folder` would; before long work, say it then."""
    if not path.exists() or (path / marker).is_file():
        return
    if path.is_file() or not all(inside.match(_UNFINISHED) for inside in path.iterdir()):
        raise InputError(
            f"{path} already holds something else (there is no {marker} in it); choose another one"
        )


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (and the folder it is in)."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


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
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error
    return Path(path)


def _unwritable(path: str | Path, error: OSError) -> OutputError:
    """Of a file as of a folder: who gave a folder may hear of a file in it."""
    return OutputError(
        f"{path}: cannot be written ({error}); choose a place where you may write, with room left"
    )


def clear_unfinished(folder: Path) -> None:
    """Remove what a killed process left of all that it was `writing`, here and in subfolders."""
    for leftover in list(folder.rglob(_UNFINISHED)):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
