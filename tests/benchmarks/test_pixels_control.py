"""The benchmark of the exam's missed control: what it trains, and the committed result."""

import json
from pathlib import Path

import pytest

from benchmarks.pixels import control
from benchmarks.pixels.config import ExamConfig
from eligo.config import load_config

RESULTS = json.loads(control.RESULTS.read_text("utf-8"))


CHANGED = {
    "pixels_exam": set(),
    "steps": {"steps"},
    "scenes": {"steps", "train_images"},
    "blocks": set(),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_trial_changes(name: str):
    """Its own settings, for both networks, which differ in parameters only."""
    assert set(control.TRIALS) == set(CHANGED)
    configs = control.configs(control.TRIALS[name])
    exam = load_config(
        ExamConfig, Path(__file__).parents[2] / "benchmarks" / "pixels" / "study.yaml"
    ).model_dump()
    settings = configs[control.PLAIN][0].model_dump()
    assert {key for key in exam if exam[key] != settings[key]} == CHANGED[name]
    runs = [exam.run(arm, 0) for exam, arm in configs.values()]
    plain, wide = (run.model_dump(exclude={"train": {"name"}}) for run in runs)
    differ = [key for key in plain if plain[key] != wide[key]]
    assert differ == ["encoder" if name == "blocks" else "head"]
    assert runs[0].sam.decoder.stages == ()  # no words


def test_a_run_that_two_trials_share_is_made_once():
    """Two processes in one folder would fall over each other."""
    runs = control.wanted(
        Path("runs"),
        load_config(ExamConfig, Path(__file__).parents[2] / "benchmarks" / "pixels" / "study.yaml"),
    )
    jobs = [run for run in runs if run[1:] == (control.PLAIN, 0)]
    assert len(jobs) == 3
    assert len(runs) == 7 * 3
    # What trains it is the same, whichever trial it is for.
    exam, arm = runs[Path("runs/pixels_exam"), control.PLAIN, 0]
    assert (exam, arm) == (
        load_config(ExamConfig, Path(__file__).parents[2] / "benchmarks" / "pixels" / "study.yaml"),
        control.PLAIN,
    )


def test_what_the_exam_has_is_not_trained_again():
    out = Path("runs")
    exam, own = out / "pixels_exam", out / "pixels_control"
    assert control.folder(out, "pixels_exam", control.WIDE) == exam
    assert control.folder(out, "blocks", control.PLAIN) == exam
    assert control.folder(out, "blocks", control.WIDE) == own / "blocks"
    assert control.folder(out, "steps", control.PLAIN) == own / "steps"


def test_the_committed_result():
    """The exam's own row is the one that the exam has; a row is met to the end of its interval."""
    rows = {row["trial"]: row for row in RESULTS["trials"]}
    assert list(rows) == [trial.says for trial in control.TRIALS.values()]
    exam = json.loads((control.RESULTS.parent / "pixels_exam.json").read_text("utf-8"))
    told = next(row for row in exam["differences"] if row["arm"] == control.WIDE)
    first = rows["as in the exam"]
    assert [first[key] for key in ("points", "low", "high")] == [
        told[key] for key in ("points", "low", "high")
    ]
    for row in rows.values():
        assert row["met"] == (max(abs(row["low"]), abs(row["high"])) <= RESULTS["bar"])
        assert row[control.WIDE]["parameters"] > 2 * row[control.PLAIN]["parameters"]
