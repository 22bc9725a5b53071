"""The benchmark of the exam's missed control: what it trains, and the committed result."""

import json
from pathlib import Path

from benchmark_scripts import load_benchmark

control = load_benchmark("pixels_control")
RESULTS = json.loads(control.RESULTS.read_text("utf-8"))


def test_each_trial_changes_one_thing():
    """Both networks differ in parameters only; a trial's exam differs in its own settings."""
    for name, trial in control.TRIALS.items():
        runs = {which: exam.run(arm, 0) for which, (exam, arm) in control.configs(trial).items()}
        plain, wide = (run.model_dump(exclude={"train": {"name"}}) for run in runs.values())
        differ = [key for key in plain if plain[key] != wide[key]]
        assert differ == (["encoder"] if trial.wide_settings else ["head"]), name
        assert runs[control.PLAIN].sam.decoder.stages == ()  # no words


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
