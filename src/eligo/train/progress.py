"""A progress bar on a terminal; elsewhere plain lines, at most one in ten seconds."""

import time

from rich import progress as rich
from rich.console import Console

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBar:
    """A progress bar on stderr."""

    def __init__(self, label: str, total: int, start: int = 0, *, visible: bool = True) -> None:
        self.label, self.total, self.start, self.visible = label, total, start, visible
        self.console = Console(stderr=True)
        self.bar: rich.Progress | None = None
        if visible and self.console.is_terminal:
            columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TaskProgressColumn())
            times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
            self.bar = rich.Progress(
                "{task.description}", *columns, *times, "{task.fields[note]}", console=self.console
            )
            self.row = self.bar.add_task(label, total=total, completed=start, note="")
        self.began = self.last_line = time.monotonic()

    def __enter__(self) -> "ProgressBar":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, note: str = "", *, total: int | None = None) -> None:
        """Show that `done` items are finished, with a note beside; `total`: of so many, now."""
        self.total = self.total if total is None else total
        if self.bar is not None:
            self.bar.update(self.row, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        if not self.visible or (
            done < self.total and now - self.last_line < _SECONDS_BETWEEN_LINES
        ):
            return
        self.last_line = now
        left = (now - self.began) / max(1, done - self.start) * (self.total - done)
        self.console.out(
            f"{self.label} {done}/{self.total}, {clock(left)} left  {note}".rstrip(),
            highlight=False,
        )


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds: 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
