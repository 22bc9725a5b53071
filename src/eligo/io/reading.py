"""Files that anybody may have made: text, JSON and JSON lines, read within limits.

What cannot be read is an `InputError` that names the file, the line and what was expected. Only
plain files are opened (a pipe would make us wait for ever), nesting and size are limited.
"""

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from eligo.errors import ConfigError, EligoError, InputError, MissingExtraError

_MOST_BYTES = 1 << 32
_DEEPEST = 100  # levels of a JSON document
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_HOST_PACKAGES = ("torchvision", "num2words")  # of the extra `hosts`
_LONGEST = 300  # characters of somebody else's message


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


def is_special(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder, so that opening it may wait.

    >>> is_special(Path("."))
    False
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


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
def reading(where: str | Path, expected: str) -> Iterator[None]:
    """Around code that reads a file or folder and builds what it describes: errors are one line.

    Keep all else out of it: a bug of ours should keep its traceback.

    >>> with reading("run/state.json", "the state of a run"):  # doctest: +SKIP
    ...     step = int(document["step"])
    """
    try:
        yield
    except ConfigError as error:  # a line for each key
        raise InputError(f"{where}: {reason(error)}; expected {expected}") from error
    except InputError as error:
        if str(where) in str(error):
            raise
        raise InputError(f"{where}: {error}") from error
    except (EligoError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        said = reason(error)
        if isinstance(error, ImportError) or "to be installed" in said:
            raise _missing_package(where, said) from error
        raise InputError(f"{where}: cannot be read ({said}); expected {expected}") from error


def reason(error: BaseException) -> str:
    """What an exception says, on one line of bounded length.

    >>> reason(ValueError("no\\n  such thing"))
    'no such thing'
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    if isinstance(error, KeyError):
        return f"there is no {error}"
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ..."


def _missing_package(where: str | Path, said: str) -> EligoError:
    for package in _HOST_PACKAGES:
        if package in said.lower():
            return MissingExtraError(package, "hosts", needed_by=str(where))
    return EligoError(f"{where}: needs a package that is not installed ({said})")


def read_object(path: Path, made_by: str) -> dict[str, Any]:
    """The JSON object in a file of a model folder; `made_by` writes such files."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: got a {type(found).__name__}, expected a JSON object, as {made_by} writes it"
        )
    return found
