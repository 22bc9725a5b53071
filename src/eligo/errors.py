"""Errors that the user can fix.

The message says what was wrong, what was expected and how to fix it; the command line prints it
without a traceback. Any other exception is a bug and keeps its traceback.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class EligoError(Exception):
    """The work failed; the command line exits with 1."""


class InputError(EligoError, ValueError):
    """Invalid input (a file, a value, a shape); the command line exits with 2."""


class ConfigError(InputError):
    """Invalid config file or flag: names the file, the key and the nearest valid key."""


class OutputError(InputError, OSError):
    """A file cannot be written: no such folder, no permission, a full disk."""


class MissingExtraError(EligoError, ImportError):
    """An optional dependency is not installed; names the extra that installs it."""

    def __init__(self, package: str, extra: str, *, needed_by: str = "") -> None:
        what = f"{needed_by}: needs {package}, which" if needed_by else package
        super().__init__(f"{what} is not installed: pip install 'eligo[{extra}]'")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with the message of an `EligoError` instead of a traceback; for scripts."""
    try:
        yield
    except EligoError as error:
        sys.exit(f"error: {error}")
