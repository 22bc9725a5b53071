"""What eligo raises when a user can do something about it.

The message says what was got, what was expected and how to fix it; the command line prints it
without a traceback. Anything else that escapes is a bug of ours and keeps its traceback.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class EligoError(Exception):
    """The work failed in a way we foresaw; the command line exits with 1."""


class InputError(EligoError, ValueError):
    """The user gave something that cannot work (a file, a value, a shape); exit code 2."""


class ConfigError(InputError):
    """A config file or flag is wrong: names the file, the key and the nearest valid key."""


class OutputError(InputError, OSError):
    """A file cannot be written: a folder that is none or may not be written to, a full disk."""


class MissingExtraError(EligoError, ImportError):
    """An optional dependency is not installed; names the extra that brings it."""

    def __init__(self, package: str, extra: str, *, needed_by: str = "") -> None:
        what = f"{needed_by}: needs {package}, which" if needed_by else package
        super().__init__(
            f"{what} is not installed; it comes with the extra: pip install 'eligo[{extra}]'"
        )


@contextmanager
def told_plainly() -> Iterator[None]:
    """For scripts, around a block or a function: such an error is told, and the script ends."""
    try:
        yield
    except EligoError as error:
        sys.exit(f"error: {error}")
