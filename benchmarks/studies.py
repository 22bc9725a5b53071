"""Helpers that the studies of all families share."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eligo.cli.console import print_result, print_text
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


def print_study(
    summary: Mapping[str, Any],
    show: Callable[[Mapping[str, Any]], None],
    written: Path,
    *,
    quick: bool,
    json: bool,
) -> None:
    """Print a summary as JSON, or by `show` and with the last lines of a study."""
    if json:
        print_result(summary, json=True)
        return
    show(summary)
    print_end(quick, written)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether this process holds the lock of a run; a lock ends with its process."""
    lock = FileLock.acquire(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def run_once(lock: Path, is_finished: Callable[[], bool], run: Callable[[], Any]) -> bool:
    """Run what no other process has finished; return False if another one is doing it."""
    with claimed(lock) as is_claimed:
        if is_claimed and not is_finished():
            run()
    return is_claimed


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

    They are spawned, as a forked process cannot use a GPU, and not daemonic, as a daemon cannot
    start the processes of a data loader. If one dies, its locks are released and another process
    takes its run.
    """
    spawn = get_context("spawn")
    spawned = [spawn.Process(target=target, args=arguments) for _ in range(count)]
    for process in spawned:
        process.start()
    try:
        yield
    except BaseException:
        for process in spawned:
            process.terminate()
        raise
    finally:
        for process in spawned:
            process.join()


@dataclass(frozen=True)
class ArmStudy:
    """Every arm of a config, trained once with each seed, in one folder, by several processes."""

    config: Any
    """It has `arms` by name, and `seeds`."""
    out: Path
    quick: bool

    @property
    def runs(self) -> list[tuple[str, int]]:
        """The trainings, in the order in which they are done: seed by seed."""
        return [(arm, seed) for seed in self.config.seeds for arm in self.config.arms]

    def name(self, arm: str, seed: int) -> str:
        """Return the name of a training: arms by number, as their names are no file names."""
        return f"{list(self.config.arms).index(arm)}_{seed}"

    def result(self, arm: str, seed: int) -> Any:
        """Return the result of a training; None if there is none yet."""
        raise NotImplementedError

    def run(self, arm: str, seed: int) -> None:
        """Train one arm, and write its result."""
        raise NotImplementedError

    def is_ready(self, arm: str, seed: int) -> bool:  # noqa: ARG002
        """Whether a training has what it starts from."""
        return True

    def missing(self) -> list[tuple[str, int]]:
        """Return the trainings without a result."""
        return [run for run in self.runs if self.result(*run) is None]

    def work(self) -> None:
        """Do the missing trainings, beside other processes."""
        work_through(self.missing, lambda run: self._attempt(*run))

    def _attempt(self, arm: str, seed: int) -> bool:
        return self.is_ready(arm, seed) and run_once(
            self.out / "locks" / self.name(arm, seed),
            lambda: self.result(arm, seed) is not None,
            lambda: self.run(arm, seed),
        )
