"""A queue of limited length in front of one worker thread.

A model uses all cores for one call, so calls run one after another, in one thread (torch keeps a
thread pool for every calling thread).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from time import monotonic, sleep
from typing import TypeVar

from eligo.explorer.tools import RefusedError

T = TypeVar("T")


class WorkQueue:
    """At most `places` requests at a time, of which one runs; each waits at most `seconds`."""

    def __init__(self, places: int = 40, seconds: float = 60.0) -> None:
        self.places, self.seconds = places, seconds
        self.taken = 0
        """Requests that wait, run, or are being answered."""
        self._lock, self._open = Lock(), True
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="eligo-live")

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Reserve a slot until the reply is sent; refused if the queue is full."""
        with self._lock:
            if not self._open:
                raise RefusedError(503, "the server is shutting down")
            if self.taken >= self.places:
                raise RefusedError(503, f"busy: {self.taken} requests are waiting; try again soon")
            self.taken += 1
        try:
            yield
        finally:
            with self._lock:
                self.taken -= 1

    def work(self, job: Callable[[], T]) -> T:
        """Run a job in the worker thread, or refuse if that takes too long."""
        try:
            done = self._worker.submit(job)
            try:
                return done.result(self.seconds)
            finally:
                done.cancel()  # if it has not started
        except TimeoutError:
            raise RefusedError(
                503, f"busy: no answer within {self.seconds:g} s; try again"
            ) from None
        except (CancelledError, RuntimeError) as error:
            if self._open:
                raise
            raise RefusedError(503, "the server is shutting down") from error

    def close(self, seconds: float = 5.0) -> None:
        """Accept no more requests; running ones have `seconds` to finish."""
        with self._lock:
            self._open = False
        until = monotonic() + seconds
        while self.taken and monotonic() < until:
            sleep(0.02)
        self._worker.shutdown(wait=False, cancel_futures=True)
