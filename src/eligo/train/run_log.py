"""`training.log` in a run folder: what a training printed, each message with its time.

A logging handler records the messages of eligo and the Python warnings that are shown. The file is
opened when the run folder is claimed; earlier messages are kept until then. If it cannot be written
(a full disk), the run ends with an `OutputError` and can be resumed, as with all files of a run.
Imports no torch.
"""

import logging
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eligo.errors import EligoError, OutputError
from eligo.io.files import GrowingFile
from eligo.io.locks import warnings_lock

TRAINING_LOG = "training.log"
_MAX_EARLY = 10_000  # messages kept while no run is going on


class RunLog(logging.Handler):
    """Writes messages to the `training.log` of the last run that was opened.

    Messages before the first run, and between two runs of a search, are also written to the next.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        layout = "%(asctime)s %(levelname)-7s %(message)s"
        self.setFormatter(logging.Formatter(layout, "%Y-%m-%d %H:%M:%S"))
        self.is_running = False
        """Whether a run is going on, between `open` and `end_run`."""
        self._early: deque[logging.LogRecord] = deque(maxlen=_MAX_EARLY)
        self._file: GrowingFile | None = None

    def open(self, folder: Path, first: str) -> None:
        """Append to the log in a run folder: the line `first`, then the messages kept so far."""
        self._close_file()
        early = list(self._early)
        self._early.clear()
        self._file = GrowingFile(folder / TRAINING_LOG)
        self.is_running = True
        header = _record(first, logging.INFO)
        if early:
            header.created = early[0].created
        for record in [header, *early]:
            self.handle(record)

    def end_run(self) -> None:
        """Mark the end of a run; the result is still written to its log."""
        self.is_running = False

    def write(self, message: str, level: int = logging.INFO) -> None:
        """Write a message that does not come from a logger."""
        self.handle(_record(message, level))

    def write_error(self, error: BaseException) -> None:
        """Write why the command ended, as far as that is possible."""
        message, level = str(error), logging.ERROR
        if isinstance(error, KeyboardInterrupt):
            message, level = message or "stopped by an interrupt", logging.WARNING
        elif not isinstance(error, EligoError):
            message = "".join(traceback.format_exception(error)).rstrip()
        with suppress(OutputError):  # the first error matters more
            self.write(message, level)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record, or keep it for the next run."""
        if not self.is_running:
            self._early.append(record)
        if self._file is None:
            return
        try:
            self._file.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except OutputError:
            self._close_file()  # one error is enough
            raise

    def close(self) -> None:
        """Close the file."""
        self._close_file()
        super().close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def record_messages() -> Iterator[RunLog]:
    """Record messages, shown warnings and the final error; yields the log, which `fit` opens.

    Inside another such block, yields the log of that one, unless a run of its own is going on.
    """
    logger = logging.getLogger("eligo")
    for handler in logger.handlers:
        if isinstance(handler, RunLog) and not handler.is_running:
            yield handler
            return
    log = RunLog()
    logger.addHandler(log)
    show = warnings.showwarning

    def show_and_record(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        show(message, category, filename, lineno, file, line)
        if file is None:
            text = warnings.formatwarning(message, category, filename, lineno, line)
            log.write(text.rstrip(), logging.WARNING)

    with warnings_lock:
        warnings.showwarning = show_and_record
    try:
        yield log
    except SystemExit:
        raise
    except BaseException as error:
        log.write_error(error)
        raise
    finally:
        with warnings_lock:
            if warnings.showwarning is show_and_record:
                warnings.showwarning = show
        logger.removeHandler(log)
        log.close()


def _record(message: str, level: int) -> logging.LogRecord:
    name = logging.getLevelName(level)
    return logging.makeLogRecord({"msg": message, "levelno": level, "levelname": name})
