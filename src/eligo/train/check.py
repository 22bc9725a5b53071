"""Checks all data before the first step and lists all problems in one error."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from eligo.errors import InputError
from eligo.train.progress import ProgressBar

if TYPE_CHECKING:
    from eligo.train.processes import Processes

Item = TypeVar("Item")
Result = TypeVar("Result")
_SHOWN = 5  # problems listed in an error
_BATCH = 256
_THREADS = min(8, os.cpu_count() or 1)  # decoding an image releases the GIL


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
        self, label: str, items: Sequence[Item], function: Callable[[Item], Result]
    ) -> list[Result]:
        """Call the function on every item, split over the processes; collect its InputErrors.

        Returns the results of the other items, in no order.
        """
        index, count = 0, 1
        if self.processes is not None:
            index, count = self.processes.index, self.processes.count
        mine = items[index::count]
        results: list[Result] = []
        problems: list[str] = []

        def run(item: Item) -> None:
            try:
                results.append(function(item))
            except InputError as error:
                problems.append(str(error))

        visible = index == 0 and len(mine) > _BATCH
        bar = ProgressBar(f"checking {label}", len(mine), visible=visible)
        with ThreadPoolExecutor(_THREADS) as pool, bar:
            for start in range(0, len(mine), _BATCH):
                batch = mine[start : start + _BATCH]
                list(pool.map(run, batch))
                bar.update(start + len(batch))
        if self.processes is not None:
            results, problems = map(self.processes.gathered, (results, problems))
        self.problems += sorted(problems)
        return results

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
    """Return the number of problems and the first few, each on a line."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}:"
    lines = [count, *problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    return "\n  ".join(lines)
