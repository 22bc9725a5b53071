"""Ctrl-C stays Ctrl-C, and SIGTERM SIGTERM, whatever a library makes of it on the way."""

from collections.abc import Iterator
from contextlib import contextmanager

from eligo.io.interrupts import Interrupted, Raise, replaced, restore


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """What is raised after a signal leaves as `Interrupted`, a KeyboardInterrupt.

    Libraries catch it in the midst of their imports and fail later with errors of their own
    (ImportError, RecursionError), which then say something that is not so.
    """
    handler = Raise()
    before = replaced(handler)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if handler.number:
            raise Interrupted(handler.number) from error
        raise
    finally:
        restore(before)
