"""No invalid input ends in a traceback, for any command, config and file.

ELIGO_FUZZ_CASES sets the number of cases, ELIGO_FUZZ_SEED the seed; a failure names its case.
"""

import contextlib
import io
import os
import signal
import traceback
import warnings
from pathlib import Path

import pytest
from fuzz_cases import TEMPLATES, make_case, without_work
from fuzz_samples import Samples

from eligo.cli import main
from eligo.cli.commands import COMMANDS

_CASES = int(os.environ.get("ELIGO_FUZZ_CASES", "100"))
_SEED = int(os.environ.get("ELIGO_FUZZ_SEED", "0"))
_PARTS = 4  # parts that can run in parallel
_HANGS = 120  # seconds
_LONGEST = 40_000  # characters of a message: a path of 5,000 characters may be repeated
_CODES = (0, 1, 2, 130)


class _Hangs(BaseException):
    """A case did not end in time."""


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    return Samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture
def enclosed(tmp_path, monkeypatch):
    """A working folder that contains all default paths for reading and writing."""
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_every_command_is_covered():
    assert {command for command, *_ in TEMPLATES} == set(COMMANDS)


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_input_ends_in_a_traceback(part, samples, enclosed, monkeypatch):
    found = []
    for number in range(part, _CASES, _PARTS):
        folder = enclosed / f"{number}" / "a" / "b"  # a stray `..` or two stays inside
        folder.mkdir(parents=True)
        case = make_case(_SEED, number, samples, folder)
        monkeypatch.chdir(folder)
        before = _outside(enclosed, number)
        if (problem := run(case.argv)) or (problem := _written(before, _outside(enclosed, number))):
            shown = [word if len(word) < 80 else f"{word[:77]}..." for word in case.argv]
            found.append(
                f"seed {_SEED}, case {number}: eligo {shown}\n({case.mistakes})\n{problem}"
            )
        monkeypatch.chdir(enclosed)
    assert not found, f"{len(found)} of {_CASES // _PARTS} cases:\n\n" + "\n\n".join(found)


def run(argv: list[str]) -> str | None:
    """The problem with the exit of a command line, or None."""
    out, err = io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")

    def hangs(*_: object) -> None:
        raise _Hangs(f"for {_HANGS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(_HANGS)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            without_work(),
        ):
            warnings.simplefilter("ignore")
            code = main(argv)
    except BaseException as error:
        report = "".join(traceback.format_exception(error))
        return report[-4000:]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    err.flush()
    message = err.buffer.getvalue().decode("utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    return _wrong(code, message)


def _wrong(code: int, message: str) -> str | None:
    if code not in _CODES:
        return f"exit code {code}"
    if "Traceback (most recent call last)" in message:
        return message[-3000:]
    if code and not message.strip():
        return f"exit code {code} without a word"
    if len(message) > _LONGEST:
        return f"{len(message)} characters of messages, beginning {message[:300]!r}"
    return None


def _outside(enclosed: Path, number: int) -> set[Path]:
    """All paths except the folder of the case."""
    return {path for path in enclosed.iterdir() if path.name != str(number)}


def _written(before: set[Path], after: set[Path]) -> str | None:
    return f"written outside: {sorted(after - before)}" if after - before else None
