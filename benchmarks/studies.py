"""What the exams of all families do alike: where a quick one lies, what a verdict is called, how
one ends.
"""

from pathlib import Path

from eligo.cli.console import print_text

QUICK = "--quick: it only ran through; the numbers, and so the verdicts, mean nothing"


def exam_folder(out: Path, quick: bool) -> Path:
    """A quick exam lies inside, so that the real one never meets its runs."""
    return out / "quick" if quick else out


def met_or_missed(met: bool) -> str:
    """The word for a bar; pixels, which may start no training, also knows NOT RUN."""
    return "met" if met else "MISSED"


def say_end(quick: bool, written: Path | None) -> None:
    """The last lines: what not to believe, and where all of it stands."""
    if quick:
        print_text(QUICK)
    if written is not None:
        print_text(f"written: {written}")
