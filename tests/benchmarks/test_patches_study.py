"""The study on scenes: runs, resuming, paired comparisons and targets."""

import json

import numpy as np
import pytest

from benchmarks.patches import study
from benchmarks.patches.study import VARIANTS, Study, StudyConfig
from benchmarks.patches.summary import summarise
from benchmarks.studies import QUICK as REMARK
from benchmarks.studies import claimed
from eligo.cli import run_script
from eligo.errors import InputError
from eligo.report.intervals import paired_bootstrap

QUICK = ["--quick", "--json", "--seeds", "0", "--steps", "2", "--test_images", "8", "--variants",
         "global", "open", "paper", "ratio_1.0"]  # fmt: skip


def main(args):
    return run_script(study.run, args)


def test_finished_runs_are_kept(tmp_path, capsys, monkeypatch):
    command = [*QUICK, "--see_steps", "2", "--out", str(tmp_path / "study")]
    assert main([*command, "--workers", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in found["variants"]] == ["global", "open", "paper", "ratio_1.0"]
    assert found["quick"] is True
    assert [target["target"][:9] for target in found["targets"]] == [
        "open: rat", "open: rat", "open: bes", "paper: be", "leak test"
    ]  # fmt: skip
    assert all(isinstance(target["reached"], bool) for target in found["targets"])
    assert found["variants"][2]["leak_free"] is True
    # A missing run is repeated with the same result.
    out = tmp_path / "study" / "quick"
    assert [path.name for path in out.parent.iterdir()] == ["quick"]
    (out / "open_0" / "result.json").unlink()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    for first, second in zip(found["variants"], again["variants"], strict=True):
        assert first["mean_recall"] == second["mean_recall"]
    # A study with other settings does not use these runs or their encoder.
    assert main([*QUICK, "--see_steps", "3", "--out", str(tmp_path / "study")]) == 2
    assert "see_steps" in capsys.readouterr().err
    # The results can be summarised from another folder.
    monkeypatch.setattr(study, "train_model", None)
    for path in stamps:
        moved = tmp_path / "moved" / "quick" / path.parent.name / path.name
        moved.parent.mkdir(parents=True)
        moved.write_bytes(path.read_bytes())
    some = ["--variants", "global", "paper", "--see_steps", "2", "--out", str(tmp_path / "moved")]
    assert main([*QUICK[: QUICK.index("--variants")], *some]) == 0
    moved = json.loads(capsys.readouterr().out)
    assert moved["variants"] == [found["variants"][0], found["variants"][2]]
    assert moved["made_on"] == found["made_on"]
    words = [word for word in QUICK[: QUICK.index("--variants")] if word != "--json"]
    assert main([*words, *some]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {tmp_path / 'moved' / 'quick' / 'study.json'}"]
    reached = {line.split("│")[-2].strip() for line in lines if "leak test" in line}
    assert reached == {"yes"}


def test_study_evaluates_on_the_test_split(tmp_path):
    """Not on the split that chooses the checkpoint, nor on the training split."""
    quick = Study(StudyConfig().quick(), tmp_path)
    splits = [data.rendered.graph.split for data in (quick.test, quick.source.validation())]
    assert splits == ["test", "validation"]
    assert len(quick.test) == 32


def test_run_is_claimed_by_one_process(tmp_path):
    path = tmp_path / "locks" / "open_0"
    with claimed(path) as first, claimed(path) as second, claimed(path.with_name("x")) as other:
        assert (first, second, other) == (True, False, True)
    with claimed(path) as later:
        assert later


def test_variants_differ_only_in_matching():
    config = StudyConfig()
    runs = {name: config.variant_run(name, 1, "vision") for name in VARIANTS}
    assert not runs["relevant"].centre_heads  # only the score of LAPS needs centred heads
    for run in runs.values():
        same = {"train.name": "x", "model.match": runs["open"].model.match, "centre_heads": True}
        assert run.replace(same) == runs["open"].replace({"train.name": "x"})
    assert runs["relevant"].model.match.typicality < 0 < runs["open"].model.match.typicality
    ratios = {name: run.model.match.sparse_ratio for name, run in runs.items()}
    assert (ratios["open"], ratios["ratio_0.25"], ratios["ratio_1.0"]) == (0.5, 0.25, 1.0)
    assert runs["open_dense"].model.match.dense
    assert runs["paper"].model.match.dense
    assert config.see_run(1).see_steps == config.see_run(1).train.total_steps


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
def test_targets_are_reached_or_listed(slimming, over_global, hit, hit_of_paper, leaks, missed):
    points = {"hit": hit, "chance": 0.1, "hit_by_text": 0.0, "kept": 0.0}
    of_paper = {"pointing": points | {"hit": hit_of_paper}, "leak": {"passes": not leaks}}
    results = {
        "open": {s: run_of(60.0, 1.0, s, pointing=points) for s in range(3)},
        "ratio_1.0": {s: run_of(60.0 - slimming, 1.0, s, pointing=points) for s in range(3)},
        "global": {s: run_of(60.0 - over_global, 1.0, s) for s in range(3)},
        "paper": {s: run_of(60.0, 1.0, s, **of_paper) for s in range(3)},
    }
    found = summarise(200, results)
    assert len(found["targets"]) == 5
    names = [target["target"] for target in found["targets"] if not target["reached"]]
    assert [name[: len(start)] for name, start in zip(names, missed, strict=True)] == missed
    row = next(row for row in found["comparisons"] if row["against"] == "ratio_1.0")
    assert row["difference"] == pytest.approx(slimming)


def test_width_of_the_paired_bootstrap():
    """Without a difference between runs, the width is the theoretical one."""
    values = np.random.default_rng(0).standard_normal(400)
    mean, low, high = paired_bootstrap([values.tolist()] * 3, resamples=2000)
    error = values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (high - low) == pytest.approx(2 * 1.96 * error, rel=0.1)
    # Variance between runs widens it, for any number of queries.
    wide = paired_bootstrap([[0.0] * 50, [3.0] * 50], resamples=500)
    assert wide == (1.5, 0.0, 3.0)
    with pytest.raises(InputError, match="as many queries"):
        paired_bootstrap([])
