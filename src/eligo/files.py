"""Files that are either whole or not there: written under a temporary name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eligo.errors import InputError


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` if nothing went wrong, else it goes.

    >>> with writing("runs/note.txt") as temporary:  # doctest: +SKIP
    ...     temporary.write_text("whole")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (and the folder it is in)."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
