"""`python -m benchmarks.scenes.stats`: tables, summary and invalid arguments."""

import json
from pathlib import Path

import pytest

from benchmarks.scenes.stats import KindStats, Stats, _conclusion, run
from eligo.cli import run_script


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--questions", "0"], "--questions"),
        (["scenes/nyu"], "task: got 'scenes.export', but this command runs StatsConfig tasks"),
    ],
)
def test_invalid_arguments_are_refused(
    args: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_script(run, args) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_stats_command_prints_tables(capsys):
    flags = ("--train", "60", "--validation", "40")
    assert run_script(run, [*flags]) == 0
    table = capsys.readouterr().out
    for word in ("lookup", "same colour", "blind", "held-out pairs", "OK"):
        assert word in table
    assert run_script(run, [*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in found["questions"]} >= {"count", "relation"}
    assert found["held_out"]["train"] == 0


def test_stats_of_a_world_without_questions(capsys):
    assert run_script(run, ["--scenes.painted", "1"]) == 2
    assert "painted=0" in capsys.readouterr().err


def test_conclusion_depends_on_the_blind_accuracy():
    def conclusion(blind: float, fair: bool) -> str:
        row = KindStats("count", "all", 9, 1.0, 0.2, blind, 1.0, (0.1, 0.4), fair, {})
        return _conclusion(Stats([row], {}, {})).plain

    above = "more than 5 points above chance without the image"
    assert conclusion(0.22, True) == f"OK: none is {above}"
    assert conclusion(0.30, True) == f"OK, but too few questions to be sure; {above}: count/all"
    assert conclusion(0.30, False) == f"!! significantly, and {above}: count/all"
