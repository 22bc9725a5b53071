"""Check of all data before the first step: all problems are listed in one error."""

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
_SHOWN = 5  # problems listed in an error
_BATCH = 256
_THREADS = min(8, os.cpu_count() or 1)  # decoding an image releases Python's lock


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

    def each(
        self, label: str, items: Sequence[Item], function: Callable[[Item], Found]
    ) -> list[Found]:
        """Call the function on every item, split over the processes; an InputError is a problem.

        Returns the results of the other items, in no order.
        """
        index, count = 0, 1
        if self.processes is not None:
            index, count = self.processes.index, self.processes.count
        mine = items[index::count]
        found: list[Found] = []
        problems: list[str] = []

        def one(item: Item) -> None:
            try:
                found.append(function(item))
            except InputError as error:
                problems.append(str(error))

        visible = index == 0 and len(mine) > _BATCH
        bar = ProgressBar(f"checking {label}", len(mine), visible=visible)
        with ThreadPoolExecutor(_THREADS) as pool, bar:
            for start in range(0, len(mine), _BATCH):
                some = mine[start : start + _BATCH]
                list(pool.map(one, some))
                bar.update(start + len(some))
        if self.processes is not None:
            found, problems = map(self.processes.gathered, (found, problems))
        self.problems += sorted(problems)
        return found

    def add(self, problem: str) -> None:
        """Add a problem of the whole data set."""
        self.problems.append(problem)

    def finish(self) -> None:
        """Raise if there was a problem."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise InputError(self.problems[0])
        raise InputError(f"the data have {listed(self.problems)}")


def listed(problems: Sequence[str]) -> str:
    """The number of problems and the first few, each on a line."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}:"
    lines = [count, *problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    return "\n  ".join(lines)
