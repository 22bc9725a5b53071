"""`eligo tokens sweep`: its files, finished variants, errors."""

import csv
import json
import sys

import pytest

from eligo.cli import main
from eligo.cli.registry import load_run_config
from eligo.errors import MissingExtraError
from eligo.report.plots import Panel, Point, save_panels
from eligo.tokens.config import SweepConfig
from eligo.tokens.inference.sweep import Variant, variants_of
from eligo.tokens.methods import METHODS, VIDEO_METHODS, build, read_method
from eligo.tokens.metrics import accuracy_by_family, drop_by_family, paired_drop
from eligo.tokens.plan import Cut, Plan, Stage1

SMALL = ["--smoke", "--questions", "12", "--batch_size", "12", "--budgets", "9"]


def sweep(out, *flags):
    return main(["tokens", "sweep", *SMALL, "--out", str(out), *flags])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    assert sweep(out, "--methods", "pool", "fastv") == 0
    return out


def read(out):
    return json.loads((out / "sweep.json").read_text())


def test_sweep_writes_results(swept):
    names = {"sweep.json", "sweep.csv", "accuracy.png", "families.png"}
    assert {path.name for path in swept.iterdir()} == names
    variants = read(swept)["variants"]
    assert [one["name"] for one in variants] == ["none", "pool", "fastv", "blind"]
    whole, pool, fastv, blind = variants
    assert {"date", "hardware", "command", "versions"} <= set(pool["provenance"])
    assert all(len(one["right"]) == one["rows"][0]["asked"] == 12 for one in variants)
    assert sum(row["asked"] for row in pool["rows"][1:]) == 12
    assert (whole["kept"], pool["kept"], fastv["kept"]) == ([16], [9], [16, 9])
    assert fastv["layers"] == [0, 2]
    assert whole["flops_reduction_total"] == 0
    assert 0 < pool["flops_reduction_with_selector"] < pool["flops_reduction_llm"]
    assert (
        fastv["flops_reduction_llm"] < pool["flops_reduction_llm"]
    )  # two layers process all tokens
    assert whole["mean_length"] - pool["mean_length"] == pytest.approx(16 - 9)
    assert "flops_llm" not in blind


def test_csv_has_one_row_per_variant(swept):
    with (swept / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(one["rows"]) for one in read(swept)["variants"])
    for row in rows:
        assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])
        assert int(row["right"]) <= int(row["asked"])
    assert {row["kept"] for row in rows if row["name"] == "fastv"} == {"16>9"}


def test_finished_variants_are_skipped(swept, capsys, monkeypatch):
    before = read(swept)
    monkeypatch.setattr("eligo.tokens.inference.load.load_host", None)  # must not be needed
    assert sweep(swept, "--methods", "pool", "fastv") == 0
    printed = capsys.readouterr()
    assert "4 of 4 variants are in" in printed.err
    assert "by family" in printed.out
    assert read(swept) == before
    monkeypatch.undo()
    assert sweep(swept, "--methods", "pool", "--budgets", "9", "4", "--json") == 0
    printed = capsys.readouterr()
    assert "3 of 4 variants are in" in printed.err
    shown = [(one["name"], one["budget"]) for one in json.loads(printed.out)["variants"]]
    assert shown == [("none", None), ("pool", 9), ("pool", 4), ("fastv", 9), ("blind", None)]
    assert {one["key"] for one in before["variants"]} < {
        one["key"] for one in read(swept)["variants"]
    }


def test_tuned_methods_have_equal_cost(tmp_path, capsys, monkeypatch):
    flags = ("--methods", "random", "fastv", "mmr", "--budgets", "9", "--trials", "2")
    flags += ("--host.random.layers", "12")
    assert sweep(tmp_path, *flags) == 0
    tuning = json.loads((tmp_path / "tuning.json").read_text())["made"]["methods"]
    assert list(tuning) == ["random@9", "fastv@9", "mmr@9"]
    for entry in tuning.values():
        accuracies = [trial["accuracy"] for trial in entry["trials"]]
        assert 1 <= len(accuracies) <= 2
        assert accuracies[entry["chosen"]] == max(accuracies)
    whole, random, *others, _ = read(tmp_path)["variants"]
    assert [one["name"] for one in (random, *others)] == [
        "random, tuned", "fastv, tuned", "mmr, tuned"
    ]  # fmt: skip
    assert random["kept"] == [9]
    spent = random["flops_llm"]
    for one in others:  # of 16 tokens, one is a large step
        cost = one["flops_llm"] + one["flops_selector"]
        assert cost == pytest.approx(spent, rel=0.05)
        assert cost < whole["flops_llm"]
    capsys.readouterr()
    monkeypatch.setattr("eligo.tokens.inference.sweep.tune", None)  # must not be needed
    assert sweep(tmp_path, *flags) == 0
    assert "5 of 5 variants are in" in capsys.readouterr().err
    assert sweep(tmp_path, "--methods", "tome:rounds=2", "--trials", "2") == 2
    assert "got 'tome:rounds=2' with trials" in capsys.readouterr().err
    assert sweep(tmp_path / "more", "--budgets", "99", "--trials", "2") == 2
    assert "budgets: got 99, expected at most 16" in capsys.readouterr().err


def test_saved_plans_are_swept_without_matplotlib(swept, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plan = Plan(Stage1(build("uniform"), 9), [Cut(1, build("uniform"), 4)])
    plan.save(tmp_path / "mine")
    out = tmp_path / "out"
    mine = ("--plans", str(tmp_path / "mine"), "--methods", "none")
    assert sweep(out, *mine) == 0
    assert "pip install 'eligo[plots]'" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"sweep.json", "sweep.csv"}
    assert [one["kept"] for one in read(out)["variants"]] == [[16], [9, 4], [0]]
    # The same folder with another plan in it is another variant.
    Plan(Stage1(build("uniform"), 4)).save(tmp_path / "mine")
    assert sweep(out, *mine) == 0
    assert sorted(one["kept"] for one in read(out)["variants"]) == [[0], [4], [16]]


def test_invalid_input_is_refused(swept, tmp_path, capsys):
    cases = [
        (["--methods", "fastvv"], "did you mean fastv?"),
        (["--methods", "tome:round=2"], "rounds"),
        (["--methods", "tome:8"], "NAME:OPTION=VALUE"),
        (["--plans", "nowhere"], "nowhere: there is no such folder"),
        (["--methods", "pool", "--budgets", "99"], "pool: Plan: got a budget of 99"),
        (["--methods", "fastv", "--layer", "7", "--host.random.layers", "3"], "below 3"),
    ]
    for flags, message in cases:
        assert sweep(tmp_path / "out", *flags) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert sweep(swept, "--methods", "pool", "--questions", "6") == 2
    assert "questions differ" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text("[]")
    assert sweep(tmp_path, "--methods", "pool") == 2
    assert "not a result of this version's sweep" in capsys.readouterr().err


def test_variants_of_a_sweep():
    config = load_run_config("sweep", family="tokens")
    assert isinstance(config, SweepConfig)
    assert set(config.methods) == set(METHODS) - {"none", *VIDEO_METHODS}
    variants = variants_of(config)
    assert len(variants) == 2 + len(config.methods) * len(config.budgets)
    assert len({one.key for one in variants}) == len(variants)
    deeper = variants_of(config.replace({"layer": 3, "methods": ["fastv"]}))[1]
    assert deeper.key not in {one.key for one in variants}
    assert read_method("visionzip:contextual_ratio=0.5") == build("visionzip", contextual_ratio=0.5)
    assert Variant("none", Plan()).key == "none"


def test_accuracy_by_family_and_paired_drop():
    rows = accuracy_by_family(["a", "b", "a"], [True, True, False])
    assert [(row["family"], row["right"], row["asked"]) for row in rows] == [
        ("all", 2, 3), ("a", 1, 2), ("b", 1, 1),
    ]  # fmt: skip
    mean, low, high = paired_drop([1, 1, 1, 0], [1, 0, 0, 1])
    assert mean == 0.25
    assert low < 0 < high
    first, second, everything = drop_by_family(["a", "b", "a"], [1, 1, 0.5], [0, 1, 0.5])
    assert (first.family, first.asked, first.whole, first.drop) == ("a", 2, 0.75, 0.5)
    assert (second.family, second.drop, second.drop_low) == ("b", 0, 0)
    assert everything.drop == pytest.approx(1 / 3)
    assert [row.family for row in drop_by_family(["", ""], [1, 1], [1, 1])] == ["all"]


def test_plots_need_matplotlib(tmp_path, monkeypatch):
    panel = Panel(
        "all", {"one": [Point(2.0, 3.0, 2.0, 4.0), Point(1.0, 1.0, 0.0, 2.0)]}, {"level": 1.0}
    )
    path = save_panels([panel] * 4, tmp_path / "a.png", x_label="x", y_label="y")
    assert path.read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"eligo\[plots\]"):
        save_panels([panel], tmp_path / "b.png", x_label="x", y_label="y")
