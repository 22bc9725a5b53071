"""Looking at all data before the first step: what is wrong is one error that lists it, at once."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from eligo.errors import InputError
from eligo.train.progress import ProgressBar

if TYPE_CHECKING:
    from eligo.train.processes import Processes

Item = TypeVar("Item")
Found = TypeVar("Found")
_SHOWN = 5  # problems that are named
_AT_A_TIME = 256
_THREADS = min(8, os.cpu_count() or 1)  # decoding an image leaves Python's lock alone


class DataCheck:
    """Collects the problems of a data set; `finish` raises them as one error.

    >>> check = DataCheck()
    >>> check.each("numbers", [1, 2], str)
    ['1', '2']
    >>> check.finish()
    """

    def __init__(self, processes: "Processes | None" = None) -> None:
        self.processes = processes
        self.problems: list[str] = []

    def each(self, label: str, items: Sequence[Item], look: Callable[[Item], Found]) -> list[Found]:
        """Look at every item, each process at a share of them; an InputError is a problem.

        Returns what was found in the others, in no order.
        """
        index, count = (0, 1) if self.processes is None else _place(self.processes)
        mine = items[index::count]
        found: list[Found] = []
        problems: list[str] = []

        def one(item: Item) -> None:
            try:
                found.append(look(item))
            except InputError as error:
                problems.append(str(error))

        label = f"checking {label}"
        with ThreadPoolExecutor(_THREADS) as pool, _bar(label, len(mine), index) as bar:
            for start in range(0, len(mine), _AT_A_TIME):
                some = mine[start : start + _AT_A_TIME]
                list(pool.map(one, some))
                bar.update(start + len(some))
        if self.processes is not None:
            found, problems = map(self.processes.gathered, (found, problems))
        self.problems += sorted(problems)
        return found

    def add(self, problem: str) -> None:
        """A problem of the whole."""
        self.problems.append(problem)

    def finish(self) -> None:
        """Raise if there was a problem."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise InputError(self.problems[0])
        raise InputError(f"the data have {listed(self.problems)}")


def listed(problems: Sequence[str]) -> str:
    """How many, and the first few, each on a line."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}:"
    lines = [count, *problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    return "\n  ".join(lines)


def _place(processes: "Processes") -> tuple[int, int]:
    return processes.index, processes.count


def _bar(label: str, total: int, index: int) -> ProgressBar:
    return ProgressBar(label, total, visible=index == 0 and total > _AT_A_TIME)
