"""Helpers that the studies of all families share."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eligo.cli.console import print_text
from eligo.errors import InputError
from eligo.io.locks import FileLock
from eligo.io.reading import read_json, reading
from eligo.train.progress import ProgressBar

QUICK = "--quick: a test run only; its numbers are meaningless"
_WAIT = 0.5  # seconds between checks for a free run


def study_folder(out: Path, quick: bool) -> Path:
    """Return the folder of a study; a quick one has its own, so that its runs are not reused."""
    return out / "quick" if quick else out


def step_bars() -> Callable[[str, int, int], None]:
    """Return a function that shows a bar for each step: its name, how much is done, its total."""
    bars: dict[str, ProgressBar] = {}

    def report(step: str, done: int, total: int) -> None:
        bars.setdefault(step, ProgressBar(step, total)).update(done, "")

    return report


def read_finished(mark: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of a finished training, if there is one; raise if its settings differ."""
    if not mark.is_file():
        return None
    with reading(mark, "the result of a training; remove it to train again"):
        found = read_json(mark)
        before = found["config"]
    if before != settings:
        raise InputError(
            f"{mark.parent}: was trained with other settings; expected those of this study: remove "
            "the folder, or choose another --out"
        )
    return found


def reached_or_not(reached: bool) -> str:
    """Return the word for a target in tables."""
    return "reached" if reached else "not reached"


def print_end(quick: bool, written: Path | None) -> None:
    """Print the last lines of a study: a warning after a quick one, and the file written."""
    if quick:
        print_text(QUICK)
    if written is not None:
        print_text(f"written: {written}")


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether this process holds the lock of a run; a lock ends with its process."""
    lock = FileLock.acquire(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def work_through(missing: Callable[[], Sequence[Any]], attempt: Callable[[Any], bool]) -> None:
    """Attempt the missing runs until there are none; wait where other processes have all of them.

    `attempt` returns False if it could not start a run: another process does it, or it needs one
    that is not finished.
    """
    while todo := missing():
        if not any(map(attempt, todo)):
            time.sleep(_WAIT)


@contextmanager
def helpers(count: int, target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Within the block, `count` more processes call `target`; the block's end waits for them.

    They are spawned, as a forked process cannot use a GPU. If one dies, its locks are released and
    another process takes its run.
    """
    spawned = [
        get_context("spawn").Process(target=target, args=arguments, daemon=True)
        for _ in range(count)
    ]
    for process in spawned:
        process.start()
    yield
    for process in spawned:
        process.join()
