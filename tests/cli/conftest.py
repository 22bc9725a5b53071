"""Fixtures that run command lines in this process or in a new one."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import sample_run

import eligo.config
from eligo.cli import main
from eligo.cli.commands import COMMANDS, Command
from eligo.cli.registry import TASKS
from limits import PROCESS_SECONDS


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def sample_commands(monkeypatch, tmp_path):
    """The commands of `sample_run`, in a fresh working folder, with one shipped config."""
    names = (
        "take",
        "take_plain",
        "look",
        "fail",
        "refuse",
        "interrupted",
        "terminated",
        "swallowed",
        "broken",
    )
    for name in names:
        monkeypatch.setitem(COMMANDS, f"sample {name}", Command(f"sample_run:{name}", f"to {name}"))
    registered = dict(TASKS)  # restored in order; monkeypatch would reverse it
    TASKS.clear()
    TASKS["plain"] = "sample_run:Plain"
    shipped = tmp_path / "shipped" / "sample"
    shipped.mkdir(parents=True)
    (shipped / "small.yaml").write_text("task: plain\nsize: 1\n")
    monkeypatch.setattr(eligo.config, "SHIPPED", shipped.parent)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    sample_run.calls.clear()
    yield
    TASKS.clear()
    TASKS.update(registered)


@pytest.fixture
def run(sample_commands, capsys):
    """Run a command line in this process."""

    def run(*args: str) -> Outcome:
        code = main(args)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def taken(run):
    """The config that `sample take` gets from a YAML text and flags."""

    def taken(text: str, *flags: str):
        Path("run.yaml").write_text(f"task: sample_run:Run\nname: first\n{text}")
        outcome = run("sample", "take", "run.yaml", *flags)
        assert outcome.code == 0, outcome.err
        return sample_run.calls[-1][0]

    return taken


@pytest.fixture
def rejected(run):
    """The error message for a YAML text (its first line is line 3) and flags."""

    def rejected(text: str, *flags: str) -> str:
        Path("run.yaml").write_text(f"task: sample_run:Run\nname: first\n{text}")
        outcome = run("sample", "take", "run.yaml", *flags)
        assert outcome.code == 2
        assert outcome.out == ""
        assert "Traceback" not in outcome.err
        assert not sample_run.calls
        return outcome.err

    return rejected


@pytest.fixture
def python():
    """Run Python in a new process."""

    def python(*args: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
            **options,
        )

    return python
