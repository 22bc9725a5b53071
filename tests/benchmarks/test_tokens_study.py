"""`eligo tokens exam`: equal cost, equal trials, and a verdict that follows from the answers."""

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.studies import QUICK as REMARK
from benchmarks.tokens.config import BASELINES, ExamConfig
from benchmarks.tokens.plot import plot_exam
from benchmarks.tokens.runs import Exam, untrained, variants
from benchmarks.tokens.summary import Results, judge
from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.answers import WHOLE
from eligo.tokens.inference.equal_cost import CLOSE, Arrangement, candidates, match, spending
from eligo.tokens.inference.load import load_host
from eligo.tokens.config import HostConfig
from eligo.tokens.methods import METHODS, build
from eligo.tokens.plan import Plan, Stage1

TEXT = 14


@pytest.fixture(scope="module")
def shape() -> HostShape:
    return HostShape.of(load_host(HostConfig())[0])


def price(shape: HostShape, kept: int) -> float:
    return spending(shape, Plan(Stage1(build("random"), kept)), TEXT)


def test_rivals_are_all_methods():
    assert set(BASELINES) == set(METHODS) - {"none"}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kept", [192, 64])
def test_settings_cost_the_same_or_are_the_cheapest(shape: HostShape, name: str, kept: int):
    allowed = price(shape, kept)
    found = candidates(name, shape, TEXT, allowed, 5)
    assert 1 <= len(found) <= 5
    assert len({(str(one.arrangement.method), one.arrangement.layers) for one in found}) == len(
        found
    )
    for one in found:
        spent = spending(shape, one.plan, TEXT) / allowed
        assert one.spent == pytest.approx(spent)
        assert abs(spent - 1) <= CLOSE or len(found) == 1


def test_a_match_is_the_nearest_of_all(shape: HostShape):
    allowed = price(shape, 100)
    arrangement = Arrangement(build("fastv"), (1,))
    costs = [spending(shape, arrangement.plan(kept, 576), TEXT) for kept in range(1, 577)]
    nearest = min(costs, key=lambda cost: abs(cost - allowed))
    assert match(arrangement, shape, TEXT, allowed).spent == pytest.approx(nearest / allowed)


def test_pyramids_keep_the_same_share_at_every_cut():
    plan = Arrangement(build("pyramiddrop"), (3, 6, 9)).plan(288, 576)
    assert [cut.budget for cut in plan.cuts] == [288, 144, 72]


def test_the_shipped_exam_spends_what_its_points_allow(shape: HostShape):
    """Without training: budgets and widths alone decide what a plan costs."""
    from eligo.tokens.training.task import TokensTask

    config = load_config(
        ExamConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
    )
    for name, training in config.trainings.items():
        if training.point is None:
            continue
        task = TokensTask(config.run(name, 0))
        spent = spending(shape, task.plan, TEXT) / price(shape, config.points[training.point])
        assert spent <= 1 + CLOSE, (name, spent)
        assert spent >= 1 - CLOSE or not name.startswith("two_stage"), (name, spent)


def results(right: dict[str, str], families: str = "aabb", **more) -> Results:
    cost = {"flops_reduction_with_selector": 0.7, "vision_keep_mean": 0.3}
    cost |= {"flops_llm": 1.0, "flops_selector": 0.0, **more}
    return Results(
        families=list(families) * (len(next(iter(right.values()))) // 4),
        right=right,
        cost=dict.fromkeys(right, cost),
        allowed={"33": 1.0},
        resamples=200,
    )


def test_verdict_of_a_clear_win():
    source = random.Random(0)
    often = "".join("01"[source.random() < 0.95] for _ in range(400))
    seldom = "".join("01"[source.random() < 0.6] for _ in range(400))
    found = judge(
        results(
            {"none": often, "two_stage#0": often, "two_stage#1": often, "two_stage_33#0": often,
             "tome@33": seldom, "oracle@33": "1" * 400, "blind": "0" * 400}
        )
    )  # fmt: skip
    assert [bar["met"] for bar in found["bars"]] == [True, True]
    rows = {row["arm"]: row for row in found["arms"]}
    assert rows["two_stage"]["runs"] == 2
    assert rows["none"]["accuracy"]["all"] == pytest.approx(often.count("1") / 4)
    ahead = next(
        c for c in found["comparisons"] if c["baseline"] == "tome@33" and c["family"] == "all"
    )
    assert ahead["ahead"] == pytest.approx((often.count("1") - seldom.count("1")) / 4)
    assert 0 < ahead["low"] <= ahead["ahead"] <= ahead["high"]


def test_verdict_of_a_tie_a_loss_in_one_family_and_a_dear_plan():
    ours, baseline = "1111" * 100, "1111" * 100
    found = judge(results({"none": ours, "two_stage_33#0": ours, "tome@33": baseline}))
    assert [bar["met"] for bar in found["bars"]] == [False]
    assert "tome@33" in found["bars"][0]["said"]
    # Ahead overall, behind in family b.
    found = judge(results({"none": "1111" * 100, "two_stage_33#0": "1110" * 100,
                           "tome@33": "0011" * 100}))  # fmt: skip
    assert not found["bars"][0]["met"]
    assert "behind: tome@33 in b" in found["bars"][0]["said"]
    found = judge(results({"none": ours, "two_stage#0": ours}, flops_reduction_with_selector=0.5))
    assert [bar["met"] for bar in found["bars"]] == [False]


@pytest.fixture(scope="module")
def sat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exam")
    out = folder / "quick"
    args = ["tokens", "exam", "--quick", "--out", str(folder)]
    assert main([*args, "--only", "two_stage_0", "merger_alone_11_0"]) == 0
    assert {path.name for path in out.iterdir()} == {"two_stage_0", "merger_alone_11_0"}
    assert main(args) == 0
    return out


def test_the_whole_exam_in_small(sat, capsys):
    told = json.loads((sat / "exam.json").read_text())
    assert told["quick"] is True
    assert {"date", "hardware", "command", "versions"} <= set(told)
    arms = {row["arm"]: row for row in told["arms"]}
    expected = {"none", "blind", "random@33", "tome@11", "oracle@33", "two_stage", "random@half",
                "two_stage_11, untrained", "two_stage, positions reindexed"}  # fmt: skip
    assert expected <= set(arms)
    assert arms["two_stage"]["runs"] == 3
    # The raw answers say the same as the table.
    names, codes = told["answers"]["families"]["names"], told["answers"]["families"]["codes"]
    bits = bin(int(told["answers"]["right"]["blind"], 16))[3:]
    assert len(bits) == len(codes) == 12
    for number, family in enumerate(names):
        mine = [bit for bit, code in zip(bits, codes, strict=True) if code == str(number)]
        assert arms["blind"]["accuracy"][family] == pytest.approx(100 * mine.count("1") / len(mine))
    for entry in told["tuning"]:
        best = max(trial["accuracy"] for trial in entry["trials"])
        assert entry["trials"][entry["chosen"]]["accuracy"] == best
    # Again: nothing is trained or asked anew.
    before = {path: path.stat().st_mtime_ns for path in sat.rglob("*.safetensors")}
    answered = (sat / "exam_answers.json").stat().st_mtime_ns
    capsys.readouterr()
    again = ["tokens", "exam", "--quick", "--out", str(sat.parent)]
    assert main([*again, "--json"]) == 0
    assert {row["arm"] for row in json.loads(capsys.readouterr().out)["arms"]} == set(arms)
    assert main(again) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {sat / 'exam.json'}"]
    assert [line.split(": ")[0] for line in lines if ": default plan: " in line] == ["MISSED"]
    assert {path: path.stat().st_mtime_ns for path in sat.rglob("*.safetensors")} == before
    assert (sat / "exam_answers.json").stat().st_mtime_ns == answered


def test_a_plan_untrained_and_otherwise_used(sat):
    plan = Plan.load(sat / "two_stage_0")
    fresh = untrained(plan, 0)
    assert [stage.budget for stage in fresh.stages] == [stage.budget for stage in plan.stages]
    assert fresh.layers == plan.layers
    for stage, other in zip(plan.stages, fresh.stages, strict=True):
        mine, theirs = stage.reducer.state_dict(), other.reducer.state_dict()
        assert mine.keys() == theirs.keys()
        assert not all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert [name for name, _ in variants(plan)] == [
        "positions reindexed", "sizes forgotten", "last cut by chance", "first cut by chance"
    ]  # fmt: skip


def test_a_plan_used_otherwise_meets_its_own_training():
    right = {"two_stage#0": "1100", "two_stage#1": "1111", "two_stage, sizes forgotten": "1000"}
    found = Results(["a"] * 4, right, {}, {}).difference("two_stage", "two_stage, sizes forgotten")
    assert found[0] == pytest.approx(25.0)  # not 50, against both


def test_a_training_of_other_settings_is_not_taken_for_this_one(sat):
    config = load_config(
        ExamConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
    ).quick()
    changed = {"trainings": {"two_stage": {"changes": {"optim.pruners.lr": 0.5}}}}
    exam = Exam(config.replace(changed), sat, torch.device("cpu"))
    with pytest.raises(InputError, match="two_stage_0: was trained with other settings"):
        exam.train(only=["two_stage_0"])


def test_mistakes(tmp_path):
    config = load_config(
        ExamConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
    ).quick()
    exam = Exam(config, tmp_path, torch.device("cpu"))
    with pytest.raises(InputError, match="two_stage_9"):
        exam.train(only=["two_stage_9"])
    with pytest.raises(InputError, match="no trainings"):
        Exam(ExamConfig(), tmp_path, torch.device("cpu"))


def test_the_committed_result_follows_from_its_answers(tmp_path: Path):
    path = Path(__file__).parents[2] / "benchmarks" / "tokens" / "results" / "study.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    results = Results.unpacked(told)
    assert results.packed()["answers"] == told["answers"]
    assert len(results.families) == told["config"]["questions"]
    rows = {row["arm"]: row for row in told["arms"]}
    assert list(rows) == list(results.arms)
    for arm, row in rows.items():
        assert results.accuracies(arm) == pytest.approx(row["accuracy"])
    lost = rows["two_stage"]
    found = results.difference(WHOLE, "two_stage")
    assert found == pytest.approx((lost["drop"], lost["drop_low"], lost["drop_high"]))
    pytest.importorskip("matplotlib")
    assert plot_exam(told, tmp_path / "lost.png").read_bytes().startswith(b"\x89PNG")
