"""Ctrl-C stays Ctrl-C, whatever a library makes of it on the way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """What is raised after an interrupt leaves as KeyboardInterrupt.

    Libraries catch it in the midst of their imports and fail later with errors of their own
    (ImportError, RecursionError), which then say something that is not so.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a thread gets no signals; whoever handles or ignores them otherwise means it
        return
    noted = False

    def note(*_: object) -> None:
        nonlocal noted
        noted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except BaseException as error:
        if noted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
