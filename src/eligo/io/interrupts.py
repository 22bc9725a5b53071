"""SIGINT (Ctrl-C) and SIGTERM: save what can be saved, then end the program.

Only handlers that would end the program are replaced. A process that ignores a signal (as shells
start background jobs) or has its own handlers keeps them.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handlers = dict[signal.Signals, Any]


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; the text, if any, says what was saved."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as shells count: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.number


class Raise:
    """A handler that records its signal and raises `Interrupted`."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle the signal."""
        self.number = number
        raise Interrupted(number)


class Delayed:
    """While this context is open, the first signal is only recorded in `number`.

    A second signal, or one inside `at_once`, raises `Interrupted`. Has no effect outside the main
    thread, which alone receives signals.
    """

    def __init__(self) -> None:
        self.number = 0
        """The signal that was received; 0: none."""
        self._at_once = False
        self._before: Handlers = {}

    def __enter__(self) -> "Delayed":
        self._before = replaced(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        restore(self._before)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal interrupt this block, which has nothing to save."""
        self._at_once = True
        try:
            if self.number:
                raise Interrupted(self.number)
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again, self.number = bool(self.number), number
        if again or self._at_once:
            raise Interrupted(number)


class Launcher:
    """`accelerate launch`, if it started this process: it forwards no signal to a single process,
    which would train on after its launcher has ended."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        try:
            command = Path(f"/proc/{self._parent}/cmdline").read_bytes()
        except OSError:  # not Linux
            command = b""
        self._is_accelerate = b"accelerate" in command

    def signal(self) -> int:
        """SIGTERM once the launcher has ended, else 0."""
        return signal.SIGTERM if self._is_accelerate and os.getppid() != self._parent else 0


@contextmanager
def stopped_with(text: Callable[[], str]) -> Iterator[None]:
    """Add a line about what was saved to a signal that ends this block."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(getattr(stop, "number", signal.SIGINT), text()) from stop


def replaced(handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Install a handler for signals that would end the program; return the former handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    ends = {n: h for n, h in before.items() if h in defaults or isinstance(h, Raise)}
    for number in ends:
        signal.signal(number, handler)
    return ends


def restore(before: Handlers) -> None:
    """Put back the handlers that `replaced` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)
