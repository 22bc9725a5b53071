"""Helpers that the studies of all families share."""

from pathlib import Path

from eligo.cli.console import print_text

QUICK = "--quick: a test run only; its numbers and targets mean nothing"


def study_folder(out: Path, quick: bool) -> Path:
    """The folder of a study; a quick one has its own, so that no real one reuses its runs."""
    return out / "quick" if quick else out


def reached_or_not(reached: bool) -> str:
    """The word for a target in tables."""
    return "reached" if reached else "not reached"


def print_end(quick: bool, written: Path | None) -> None:
    """Print the last lines of a study: a warning after a quick one, and the file written."""
    if quick:
        print_text(QUICK)
    if written is not None:
        print_text(f"written: {written}")
