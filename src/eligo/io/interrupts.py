"""SIGINT (Ctrl-C) and SIGTERM: work that can be saved is saved first, then the program ends.

Only handlers that would end the program are replaced: a process that ignores a signal (a shell
starts background jobs so), or a program with handlers of its own, keeps what it has.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handlers = dict[signal.Signals, Any]


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; the text, if there is one, says where the work stands."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as shells count: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.number


class Raise:
    """A handler that notes its signal and raises `Interrupted`."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle the signal."""
        self.number = number
        raise Interrupted(number)


class Delayed:
    """While this context is open, a first signal is only noted: the work stops when it can.

    A second signal, or one inside `at_once`, raises `Interrupted`. Outside the main thread, which
    alone gets signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.number = 0
        """The signal that came; 0: none."""
        self._at_once = False
        self._before: Handlers = {}

    def __enter__(self) -> "Delayed":
        self._before = replaced(self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        restore(self._before)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work with nothing to save, or with all of it saved."""
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
    """`accelerate launch`, if it started this process.

    It passes no signal on to a single process, which would then train on alone, unseen.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()
        try:
            command = Path(f"/proc/{self._parent}/cmdline").read_bytes()
        except OSError:  # no Linux: its end goes unnoticed
            command = b""
        self._is_accelerate = b"accelerate" in command

    def signal(self) -> int:
        """SIGTERM once it has ended, else 0."""
        return signal.SIGTERM if self._is_accelerate and os.getppid() != self._parent else 0


@contextmanager
def stopped_with(text: Callable[[], str]) -> Iterator[None]:
    """A signal that ends this block leaves with a line about what is kept."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(getattr(stop, "number", signal.SIGINT), text()) from stop


def replaced(handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Install a handler for the signals that would end this program; returns the former ones."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ends = {n: h for n, h in before.items() if _ends_the_program(h)}
    for number in ends:
        signal.signal(number, handler)
    return ends


def restore(before: Handlers) -> None:
    """Put back what `replaced` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)


def _ends_the_program(handler: object) -> bool:
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(handler, Raise)
