"""Helpers that the studies of all families share."""

from pathlib import Path

from eligo.cli.console import print_text

QUICK = "--quick: a test run only; its numbers are meaningless"


def study_folder(out: Path, quick: bool) -> Path:
    """Return the folder of a study; a quick one has its own, so that its runs are not reused."""
    return out / "quick" if quick else out


def reached_or_not(reached: bool) -> str:
    """Return the word for a target in tables."""
    return "reached" if reached else "not reached"


def print_end(quick: bool, written: Path | None) -> None:
    """Print the last lines of a study: a warning after a quick one, and the file written."""
    if quick:
        print_text(QUICK)
    if written is not None:
        print_text(f"written: {written}")
