"""`python -m benchmarks.tokens.study`: equal cost, tuning, and a summary of the answers."""

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.studies import QUICK as REMARK
from benchmarks.tokens.config import BASELINES, StudyConfig
from benchmarks.tokens.study import Study, ablations, run, untrained
from benchmarks.tokens.summary import Results, summarise
from eligo.cli import run_script
from eligo.config import load_config
from eligo.errors import InputError
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.equal_cost import CLOSE, Arrangement, candidates, match, spending
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import METHODS, VIDEO_METHODS, build
from eligo.tokens.plan import Plan, Stage1

TEXT = 14


@pytest.fixture(scope="module")
def shape() -> HostShape:
    return HostShape.of(load_host(HostConfig())[0])


def price(shape: HostShape, kept: int) -> float:
    return spending(shape, Plan(Stage1(build("random"), kept)), TEXT)


def test_baselines_are_all_methods():
    assert set(BASELINES) == set(METHODS) - {"none", *VIDEO_METHODS}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kept", [192, 64])
def test_settings_have_equal_cost_or_are_the_cheapest(shape: HostShape, name: str, kept: int):
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


def test_match_has_the_nearest_cost(shape: HostShape):
    allowed = price(shape, 100)
    arrangement = Arrangement(build("fastv"), (1,))
    costs = [spending(shape, arrangement.plan(kept, 576), TEXT) for kept in range(1, 577)]
    nearest = min(costs, key=lambda cost: abs(cost - allowed))
    assert match(arrangement, shape, TEXT, allowed).spent == pytest.approx(nearest / allowed)


def test_pyramids_keep_the_same_share_at_every_cut():
    plan = Arrangement(build("pyramiddrop"), (3, 6, 9)).plan(288, 576)
    assert [cut.budget for cut in plan.cuts] == [288, 144, 72]


def test_training_configs_match_the_cost_of_their_points(shape: HostShape):
    """Untrained plans: the cost depends only on budgets and widths."""
    from eligo.tokens.training.task import TokensTask

    config = load_config(
        StudyConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
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


def test_summary_of_a_clear_win():
    source = random.Random(0)
    often = "".join("01"[source.random() < 0.95] for _ in range(400))
    seldom = "".join("01"[source.random() < 0.6] for _ in range(400))
    found = summarise(
        results(
            {"none": often, "two_stage#0": often, "two_stage#1": often, "two_stage_33#0": often,
             "tome@33": seldom, "oracle@33": "1" * 400, "blind": "0" * 400}
        )
    )  # fmt: skip
    assert [target["met"] for target in found["targets"]] == [True, True]
    rows = {row["variant"]: row for row in found["variants"]}
    assert rows["two_stage"]["runs"] == 2
    assert rows["none"]["accuracy"]["all"] == pytest.approx(often.count("1") / 4)
    ahead = next(
        c for c in found["comparisons"] if c["baseline"] == "tome@33" and c["family"] == "all"
    )
    assert ahead["ahead"] == pytest.approx((often.count("1") - seldom.count("1")) / 4)
    assert 0 < ahead["low"] <= ahead["ahead"] <= ahead["high"]


def test_summary_of_a_tie_a_loss_in_one_family_and_an_expensive_plan():
    ours, baseline = "1111" * 100, "1111" * 100
    found = summarise(results({"none": ours, "two_stage_33#0": ours, "tome@33": baseline}))
    assert [target["met"] for target in found["targets"]] == [False]
    assert "tome@33" in found["targets"][0]["text"]
    # Ahead overall, behind in family b.
    found = summarise(results({"none": "1111" * 100, "two_stage_33#0": "1110" * 100,
                           "tome@33": "0011" * 100}))  # fmt: skip
    assert not found["targets"][0]["met"]
    assert "behind: tome@33 in b" in found["targets"][0]["text"]
    found = summarise(
        results({"none": ours, "two_stage#0": ours}, flops_reduction_with_selector=0.5)
    )
    assert [target["met"] for target in found["targets"]] == [False]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    out = folder / "quick"
    args = ["--quick", "--out", str(folder)]
    assert run_script(run, [*args, "--only", "two_stage_0", "merger_alone_11_0"]) == 0
    trained = {path.name for path in out.iterdir()} - {"locks"}
    assert trained == {"two_stage_0", "merger_alone_11_0"}
    assert run_script(run, args) == 0
    return out


def test_quick_study_runs(finished, capsys):
    document = json.loads((finished / "study.json").read_text())
    assert document["quick"] is True
    assert {"date", "hardware", "command", "versions"} <= set(document)
    rows = {row["variant"]: row for row in document["variants"]}
    expected = {"none", "blind", "random@33", "tome@11", "oracle@33", "two_stage", "random@half",
                "two_stage_11, untrained", "two_stage, positions reindexed"}  # fmt: skip
    assert expected <= set(rows)
    assert rows["two_stage"]["runs"] == 2
    # The raw answers agree with the table.
    answers = document["answers"]
    names, codes = answers["families"]["names"], answers["families"]["codes"]
    bits = bin(int(answers["right"]["blind"], 16))[3:]
    assert len(bits) == len(codes) == 12
    for number, family in enumerate(names):
        mine = [bit for bit, code in zip(bits, codes, strict=True) if code == str(number)]
        assert rows["blind"]["accuracy"][family] == pytest.approx(100 * mine.count("1") / len(mine))
    assert Results.unpacked(document).packed()["answers"] == answers
    pytest.importorskip("matplotlib")
    assert (finished / "lost.png").read_bytes().startswith(b"\x89PNG")
    for entry in document["tuning"]:
        best = max(trial["accuracy"] for trial in entry["trials"])
        assert entry["trials"][entry["chosen"]]["accuracy"] == best
    # A second run trains and answers nothing.
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    answered = (finished / "answers.json").stat().st_mtime_ns
    capsys.readouterr()
    again = ["--quick", "--out", str(finished.parent)]
    assert run_script(run, [*again, "--json"]) == 0
    assert {row["variant"] for row in json.loads(capsys.readouterr().out)["variants"]} == set(rows)
    assert run_script(run, again) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {finished / 'study.json'}"]
    assert [line.split(": ")[0] for line in lines if ": default plan: " in line] == ["not reached"]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")} == before
    assert (finished / "answers.json").stat().st_mtime_ns == answered


def test_earlier_results_are_used_where_settings_are_the_same(finished, tmp_path, capsys):
    """As if ToMe had not been tuned, and one plan had been trained with another seed."""
    document = json.loads((finished / "study.json").read_text())
    measured = document["answers"]["right"]
    earlier = tmp_path / "earlier.json"
    settings = document["config"]["trainings"]["merger_alone_11"]
    changed = document["config"]["trainings"] | {"merger_alone_11": settings | {"seeds": [7]}}
    tuning = [entry for entry in document["tuning"] if entry["baseline"] != "tome"]
    config = document["config"] | {"trainings": changed}
    older = {"date": "2026-01-01", "variants": ["pool@33"]}  # what that file took from another
    changes = {"config": config, "tuning": tuning, "earlier": older}
    earlier.write_text(json.dumps(document | changes))
    args = ["--quick", "--out", str(tmp_path), "--earlier", str(earlier)]
    assert run_script(run, args) == 0
    again = json.loads((tmp_path / "quick" / "study.json").read_text())
    new = {"none", "blind", "tome@33", "tome@11", "merger_alone_11#0"}
    assert set(again["earlier"]["variants"]) == set(measured) - new
    assert again["earlier"]["earlier"] == older
    assert again["answers"]["right"] == measured
    assert {path.parent.name for path in tmp_path.rglob("trained.json")} == {"merger_alone_11_0"}
    assert len(again["tuning"]) == len(document["tuning"])

    flipped = f"{int(measured['none'], 16) ^ 1:x}"
    answers = document["answers"] | {"right": measured | {"none": flipped}}
    for change, expected in (
        ({"config": config | {"questions": 7}}, "got questions 7, expected 12"),
        ({"answers": answers}, "the unpruned model answers 8.3% of the questions otherwise"),
        ({"answers": {}}, "expected the results of the tokens study"),
    ):
        earlier.write_text(json.dumps(document | change))
        capsys.readouterr()
        assert run_script(run, args) == 2
        assert expected in capsys.readouterr().err


def test_trainings_can_be_left_out(finished):
    config = StudyConfig.model_validate(json.loads((finished / "study.json").read_text())["config"])
    names = set(config.trainings)
    assert set(config.without(["two_stage", "mmr_11"]).trainings) == names - {"two_stage", "mmr_11"}
    assert set(config.trainings) == names
    with pytest.raises(InputError, match=r"skip: got 'two', expected some of two_stage, "):
        config.without(["two"])
    args = ["--quick", "--out", str(finished.parent), "--only", "two_stage_0"]
    assert run_script(run, [*args, "--skip", "two_stage"]) == 2  # it is not part of the study


def test_untrained_plan_and_ablations(finished):
    plan = Plan.load(finished / "two_stage_0")
    fresh = untrained(plan, 0)
    assert [stage.budget for stage in fresh.stages] == [stage.budget for stage in plan.stages]
    assert fresh.layers == plan.layers
    for stage, other in zip(plan.stages, fresh.stages, strict=True):
        mine, theirs = stage.reducer.state_dict(), other.reducer.state_dict()
        assert mine.keys() == theirs.keys()
        assert not all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert [name for name, _ in ablations(plan)] == [
        "positions reindexed", "sizes forgotten", "last cut by chance", "first cut by chance"
    ]  # fmt: skip


def test_ablation_is_compared_with_its_own_training():
    right = {"two_stage#0": "1100", "two_stage#1": "1111", "two_stage, sizes forgotten": "1000"}
    found = Results(["a"] * 4, right, {}, {}).difference("two_stage", "two_stage, sizes forgotten")
    assert found[0] == pytest.approx(25.0)  # not 50, as against both


def test_training_with_other_settings_is_refused(finished):
    config = load_config(
        StudyConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
    ).quick()
    changed = {"trainings": {"two_stage": {"changes": {"optim.pruners.lr": 0.5}}}}
    study = Study(config.replace(changed), finished, torch.device("cpu"))
    with pytest.raises(InputError, match="two_stage_0: was trained with other settings"):
        study.train(only=["two_stage_0"])


def test_invalid_input_is_refused(tmp_path):
    config = load_config(
        StudyConfig, Path(__file__).parents[2] / "benchmarks" / "tokens" / "study.yaml"
    ).quick()
    study = Study(config, tmp_path, torch.device("cpu"))
    with pytest.raises(InputError, match="two_stage_9"):
        study.train(only=["two_stage_9"])
    with pytest.raises(InputError, match="no trainings"):
        Study(StudyConfig(), tmp_path, torch.device("cpu"))
