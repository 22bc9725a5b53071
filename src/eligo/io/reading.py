"""Untrusted text, JSON and JSON lines, read within limits; errors name the file and the line.

Only regular files are opened (reading a pipe could block forever); nesting and size are limited.
"""

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eligo.errors import ConfigError, EligoError, InputError, MissingExtraError

_MAX_BYTES = 1 << 32
_MAX_DEPTH = 100  # levels of a JSON document
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HOST_PACKAGES = ("torchvision", "num2words")  # of the extra `hosts`
_MAX_REASON = 300  # characters of another library's message


def read_text(path: str | Path, *, most_bytes: int = _MAX_BYTES) -> str:
    """Read a UTF-8 text file, with or without a byte order mark."""
    data = _read_regular(path, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        hint = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise InputError(
            f"{path}:{line}: cannot be read as UTF-8 text{hint}; save it as UTF-8"
        ) from None


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, socket or device: opening it may block.

    >>> is_special(Path("."))
    False
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _read_regular(path: str | Path, most_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: NUL or a lone surrogate in the name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be opened ({why}); expected a file to read") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise InputError(f"{path}: is {what}; expected a file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > most_bytes:
            raise InputError(
                f"{path}: got {status.st_size:,} bytes, expected at most {most_bytes:,}; is it "
                "another file?"
            )
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, and their numbers.

    Only a newline ends a line: `str.splitlines` also cuts at U+2028, which JSON texts may hold.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line


def read_json(path: str | Path, *, unique_keys: bool = False) -> Any:
    """Read a JSON file; see `parse_json`."""
    return parse_json(read_text(path), path, unique_keys=unique_keys)


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line numbers and objects of a file of JSON lines; see `eligo.io.json_lines`."""
    for number, line in numbered_lines(path):
        row = parse_json(line, path, number)
        if not isinstance(row, dict):
            raise InputError(
                f"{path}:{number}: got {line.strip()!r:.60}, expected a JSON object {{...}}"
            )
        yield number, row


def parse_json(text: str, path: str | Path, line: int = 1, *, unique_keys: bool = False) -> Any:
    """Parse a JSON document; `path` and `line`, where the text begins, are for errors.

    Nesting is limited, so that the document can be walked recursively. Lone surrogates, which
    cannot be encoded as UTF-8, are refused.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique_pairs = dict(pairs)
        if len(unique_pairs) < len(pairs):
            name = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise InputError(f"{path}: {name!r:.60} comes twice in one object; keep one of them")
        return unique_pairs

    too_deep = InputError(f"{path}:{line}: got JSON nested deeper than {_MAX_DEPTH} levels")
    try:
        document = json.loads(text, object_pairs_hook=unique if unique_keys else None)
        if _SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode("utf-8")
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
    if _is_deep(document):
        raise too_deep
    return document


def _is_deep(document: Any) -> bool:
    level = [document] if type(document) in (dict, list) else []
    for _ in range(_MAX_DEPTH):
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
    """Turn every error of reading a file or folder into a one-line `InputError` naming `where`.

    Keep other code out of the block: our own bugs should keep their traceback.

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
        why = reason(error)
        if isinstance(error, ImportError) or "to be installed" in why:
            raise _missing_package(where, why) from error
        raise InputError(f"{where}: cannot be read ({why}); expected {expected}") from error


def reason(error: BaseException) -> str:
    """Return the message of an exception on one line of bounded length.

    >>> reason(ValueError("no\\n  such thing"))
    'no such thing'
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    if isinstance(error, KeyError):
        return f"there is no {error}"
    why = " ".join(str(error).split()) or type(error).__name__
    return why if len(why) <= _MAX_REASON else f"{why[:_MAX_REASON]} ..."


def _missing_package(where: str | Path, why: str) -> EligoError:
    for package in _HOST_PACKAGES:
        if package in why.lower():
            return MissingExtraError(package, "hosts", needed_by=str(where))
    return EligoError(f"{where}: needs a package that is not installed ({why})")


def read_object(path: Path, made_by: str) -> dict[str, Any]:
    """Read a JSON object; `made_by` names, in errors, what writes such files."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: got a {type(document).__name__}, expected a JSON object, as {made_by} "
            "writes it"
        )
    return document
