"""The embedded exam: runs through, resumes, compares in pairs, says what it missed."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.patches.config import ARMS, ExamConfig
from benchmarks.patches.runs import Exam, claimed
from benchmarks.patches.summary import judge, summarise
from benchmarks.studies import QUICK as REMARK
from eligo.cli import main
from eligo.errors import InputError
from eligo.report.intervals import paired_bootstrap

QUICK = ["patches", "exam", "--quick", "--json", "--seeds", "0", "--steps", "2", "--test_images",
         "8", "--arms", "global", "open", "paper", "ratio_1.0"]  # fmt: skip


def test_it_runs_through_and_is_not_made_twice(tmp_path, capsys, monkeypatch):
    command = [*QUICK, "--see_steps", "2", "--out", str(tmp_path / "exam")]
    assert main([*command, "--workers", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["arm"] for row in found["arms"]] == ["global", "open", "paper", "ratio_1.0"]
    assert found["quick"] is True
    assert [must["must"][:9] for must in found["musts"]] == [
        "open: rat", "open: rat", "open: bes", "paper: be", "leak test"
    ]  # fmt: skip
    assert all(isinstance(must["met"], bool) for must in found["musts"])
    assert found["arms"][2]["leak_free"] is True
    # One process makes what is missing, and it comes out the same.
    out = tmp_path / "exam" / "quick"  # so the real one is not spoiled
    assert [path.name for path in out.parent.iterdir()] == ["quick"]
    (out / "open_0" / "result.json").unlink()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    for first, second in zip(found["arms"], again["arms"], strict=True):
        assert first["mean_recall"] == second["mean_recall"]
    # Another exam is not judged by these runs, nor made from their encoder.
    assert main([*QUICK, "--see_steps", "3", "--out", str(tmp_path / "exam")]) == 2
    assert "see_steps" in capsys.readouterr().err
    # Results alone, in another place, can be judged.
    monkeypatch.setattr("benchmarks.patches.runs.train_model", None)
    for path in stamps:
        moved = tmp_path / "moved" / "quick" / path.parent.name / path.name
        moved.parent.mkdir(parents=True)
        moved.write_bytes(path.read_bytes())
    some = ["--arms", "global", "paper", "--see_steps", "2", "--out", str(tmp_path / "moved")]
    assert main([*QUICK[: QUICK.index("--arms")], *some]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["arms"] == [found["arms"][0], found["arms"][2]]
    assert judged["made_on"] == found["made_on"]
    told = [word for word in QUICK[: QUICK.index("--arms")] if word != "--json"]
    assert main([*told, *some]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {tmp_path / 'moved' / 'quick' / 'exam.json'}"]
    verdicts = {line.split("│")[-2].strip() for line in lines if "leak test" in line}
    assert verdicts == {"met"}


def test_measured_on_scenes_that_choose_nothing(tmp_path):
    """The test split: not the one that a checkpoint is chosen on, nor one that is learned from."""
    exam = Exam(ExamConfig().quick(), tmp_path)
    splits = [data.rendered.graph.split for data in (exam.test, exam.source.validation())]
    assert splits == ["test", "validation"]
    assert len(exam.test) == 32


def test_a_run_is_claimed_by_one(tmp_path):
    path = tmp_path / "locks" / "open_0"
    with claimed(path) as first, claimed(path) as second, claimed(path.with_name("x")) as other:
        assert (first, second, other) == (True, False, True)
    with claimed(path) as later:
        assert later


def test_arms_differ_only_in_how_they_match():
    exam = ExamConfig()
    runs = {arm: exam.arm_run(arm, 1, "eyes") for arm in ARMS}
    for run in runs.values():
        assert run.replace({"train.name": "x", "model.match": runs["open"].model.match}) == runs[
            "open"
        ].replace({"train.name": "x"})
    ratios = {arm: run.model.match.sparse_ratio for arm, run in runs.items()}
    assert (ratios["open"], ratios["ratio_0.25"], ratios["ratio_1.0"]) == (0.5, 0.25, 1.0)
    assert runs["open_dense"].model.match.dense
    assert runs["paper"].model.match.dense
    assert exam.see_run(1).see_steps == exam.see_run(1).train.total_steps


def run_of(recall: float, noise: float, seed: int, **more) -> dict:
    random = np.random.default_rng(seed)
    values = recall + noise * random.standard_normal(200)
    metrics = dict.fromkeys(("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "t2i_mean_recall10"), 1.0)
    return {"metrics": metrics | {"rsum": 6 * recall}, "per_scene": values.tolist(),
            "seconds": {"train": 1.0}, "made": {"hardware": "x"}, **more}  # fmt: skip


@pytest.mark.parametrize(
    ("slimming", "over_global", "hit", "hit_of_paper", "leaks", "missed"),
    [
        (0.0, 5.0, 0.4, 0.4, False, []),
        (-3.0, 5.0, 0.4, 0.4, False, ["open: ratio 0.5 not worse"]),
        (0.0, -5.0, 0.4, 0.4, False, ["open: ratio 0.5 above"]),
        (0.0, 5.0, 0.2, 0.4, False, ["open: best-scored"]),
        (0.0, 5.0, 0.4, 0.2, False, ["paper: best-scored"]),
        (0.0, 5.0, 0.4, 0.4, True, ["leak test"]),
    ],
)
def test_musts_are_met_or_not(slimming, over_global, hit, hit_of_paper, leaks, missed):
    points = {"hit": hit, "chance": 0.1, "hit_by_text": 0.0, "kept": 0.0}
    of_paper = {"pointing": points | {"hit": hit_of_paper}, "leak": {"passes": not leaks}}
    results = {
        "open": {s: run_of(60.0, 1.0, s, pointing=points) for s in range(3)},
        "ratio_1.0": {s: run_of(60.0 - slimming, 1.0, s, pointing=points) for s in range(3)},
        "global": {s: run_of(60.0 - over_global, 1.0, s) for s in range(3)},
        "paper": {s: run_of(60.0, 1.0, s, **of_paper) for s in range(3)},
    }
    found = summarise(ExamConfig(resamples=200), results)
    assert len(found["musts"]) == 5
    told = [must["must"] for must in found["musts"] if not must["met"]]
    assert [name[: len(start)] for name, start in zip(told, missed, strict=True)] == missed
    row = next(row for row in found["comparisons"] if row["against"] == "ratio_1.0")
    assert row["difference"] == pytest.approx(slimming)


def test_the_committed_result_is_judged_as_we_judge():
    """Bars met and missed follow from its tables, and its tables from every seed."""
    path = Path(__file__).parents[2] / "benchmarks" / "patches" / "results" / "study.json"
    told = json.loads(path.read_text("utf-8"))
    assert judge(told["arms"], told["comparisons"]) == told["musts"]
    rows = {row["arm"]: row for row in told["arms"]}
    assert tuple(rows) == ARMS
    for row in rows.values():
        assert len(row["by_seed"]) == len(told["config"]["seeds"]) == 3
        assert np.mean(row["by_seed"]) == pytest.approx(row["mean_recall"], abs=0.01)
        if "pointing_hit" in row:
            hits = row["pointing_hit_by_seed"]
            assert np.mean(hits) == pytest.approx(row["pointing_hit"], abs=1e-4)
    for row in told["comparisons"]:
        gap = rows[row["arm"]]["mean_recall"] - rows[row["against"]]["mean_recall"]
        assert row["difference"] == pytest.approx(gap)


def test_paired_bootstrap():
    """As wide as theory says for many queries and no difference between runs."""
    values = np.random.default_rng(0).standard_normal(400)
    mean, low, high = paired_bootstrap([values.tolist()] * 3, resamples=2000)
    error = values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (high - low) == pytest.approx(2 * 1.96 * error, rel=0.1)
    # Runs that differ make it wider, however many queries there are.
    wide = paired_bootstrap([[0.0] * 50, [3.0] * 50], resamples=500)
    assert wide == (1.5, 0.0, 3.0)
    with pytest.raises(InputError, match="as many queries"):
        paired_bootstrap([])
