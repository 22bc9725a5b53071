"""Files that are whole or not there (written aside, then renamed), and texts that people wrote."""

import json
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from uuid import uuid4

from eligo.errors import InputError, OutputError

_UNFINISHED = ".*.tmp"  # names of what is being written
_MOST_BYTES = 1 << 32
_DEEPEST = 100  # levels of a JSON document
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


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


def read_text(path: str | Path, *, most_bytes: int = _MOST_BYTES) -> str:
    """A text file of whoever made it; the mark that some editors put first is no text."""
    data = _read_regular(path, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        hint = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise InputError(
            f"{path}:{line}: cannot be read as UTF-8 text{hint}; save it as UTF-8"
        ) from None


def regular_file(path: str | Path) -> Path:
    """The path, if a plain file is there that may be read: opening a pipe would wait for ever."""
    with _opened(path):
        return Path(path)


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: NUL, or what is no file name in Unicode
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be opened ({why}); expected a file to read") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(f"{path}: is {what}; expected a file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _read_regular(path: str | Path, most_bytes: int) -> bytes:
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise InputError(
                f"{path}: got {size:,} bytes, expected at most {most_bytes:,}; is it another file?"
            )
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, and their numbers.

    Only a newline ends a line: `str.splitlines` would also cut at U+2028 and the like, which JSON
    may hold inside a text.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line


def read_json(path: str | Path, *, unique_keys: bool = False) -> Any:
    """The document of a JSON file; see `parse_json`."""
    return parse_json(read_text(path), path, unique_keys=unique_keys)


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file that has one on each line, and their line numbers."""
    for number, line in numbered_lines(path):
        row = parse_json(line, path, number)
        if not isinstance(row, dict):
            raise InputError(
                f"{path}:{number}: got {line.strip()!r:.60}, expected a JSON object {{...}}"
            )
        yield number, row


def parse_json(text: str, path: str | Path, line: int = 1, *, unique_keys: bool = False) -> Any:
    """A JSON document; `path` and the `line` at which the text begins are for errors.

    Nesting is limited, so that whoever looks at the document can do so recursively, and texts are
    Unicode: JSON can write half of a character, which no encoder takes.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            name = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise InputError(f"{path}: {name!r:.60} comes twice in one object; keep one of them")
        return found

    too_deep = InputError(f"{path}:{line}: got JSON nested deeper than {_DEEPEST} levels")
    try:
        found = json.loads(text, object_pairs_hook=unique if unique_keys else None)
        if _HALF_CHARACTER.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        at = f"{line + error.lineno - 1}:{error.colno}"
        raise InputError(f"{path}:{at}: not valid JSON: {error.msg}") from None
    except UnicodeEncodeError:
        raise InputError(
            f"{path}:{line}: holds half of a character (a lone surrogate), expected Unicode"
        ) from None
    except RecursionError:
        raise too_deep from None
    except InputError:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise InputError(f"{path}:{line}: not valid JSON: {error}") from None
    if _is_deep(found):
        raise too_deep
    return found


def _is_deep(document: Any) -> bool:
    level = [document] if type(document) in (dict, list) else []
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return True


@contextmanager
def understanding(path: str | Path, expected: str) -> Iterator[None]:
    """Around code that takes a document apart: what is missing or of another type is an error.

    >>> with understanding("run/state.json", "the state of a run"):  # doctest: +SKIP
    ...     step = int(document["step"])
    """
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{path}: is damaged ({why:.200}); expected {expected}") from error


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
