"""The study from end to end with a random learner, and its summary."""

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.shots import methods, study
from benchmarks.shots.analytic import (
    CANDIDATES,
    KINDS,
    SHOTS,
    Task,
    analytic_study,
    clustered_pool,
)
from benchmarks.shots.config import StudyConfig
from benchmarks.shots.measure import bits, near_lists
from benchmarks.shots.stages import Stages
from benchmarks.shots.summary import study_tables, summarise
from benchmarks.studies import QUICK as REMARK
from eligo.cli import main, run_script
from eligo.config import load_config
from eligo.errors import InputError
from eligo.report.intervals import bootstrap_means, paired_bootstrap
from eligo.scenes.vlm import build_processor, build_vlm, save_vlm
from eligo.shots.baselines import MMR, Random, StaticOracle
from eligo.shots.data.query import Query
from eligo.shots.model.pretrained import load_pointer
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.teacher import TeacherResult
from shipped_models import LEARNER

FOLDER = Path(study.__file__).parent


@pytest.fixture(scope="module")
def learner(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("learner")
    save_vlm(build_vlm(LEARNER), build_processor(LEARNER), folder)
    return folder


@pytest.fixture(scope="module")
def finished(learner: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study")
    args = ["--quick", "--learner", str(learner), "--out", str(out), "--part", "measure"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", study)  # as `python -m` does
        assert run_script(study.run, args) == 0
    return out / "quick"


def test_table_is_complete(finished: Path):
    found = json.loads((finished / "study.json").read_text())
    rows = ["zero_shot", "random", "best_fixed", "knn", "mmr", "dpp", "v0", "v1", "v2", "v2_gru",
            "v3", "static_oracle", "beam_oracle"]  # fmt: skip
    assert list(found["tables"]) == ["2", "3"]
    for table in found["tables"].values():
        assert [row["row"] for row in table] == rows
        by_name = {row["row"]: row for row in table}
        assert by_name["zero_shot"]["utility"][0] == pytest.approx(0, abs=1e-4)
        assert by_name["beam_oracle"]["regret"][0] == pytest.approx(0, abs=1e-4)
        assert by_name["static_oracle"]["ndcg"][0] == pytest.approx(1)
        assert by_name["v1"]["seeds"] == 2
        for row in rows[1:]:
            mean, low, high = by_name[row]["regret"]
            # Equal values may be summed in another order.
            assert low - 1e-12 <= mean <= high + 1e-12
            # Utility and regret add up to the utility of the best list.
            whole = mean + by_name[row]["utility"][0]
            assert whole == pytest.approx(by_name["beam_oracle"]["utility"][0], abs=1e-4)
    assert {target["name"].split(":")[0] for target in found["targets"]} >= {"health"}
    assert all(target["outcome"] in ("reached", "not reached") for target in found["targets"])
    assert found["command"].startswith("python -m benchmarks.shots.study")
    assert len(found["right"]) == 2 * (8 + 5 * 2)


def test_restart_repeats_only_missing_results(finished: Path, learner: Path, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    (finished / "measured" / "knn.json").unlink()
    monkeypatch.setattr("benchmarks.shots.stages.teach_together", None)
    monkeypatch.setattr("benchmarks.shots.runs.train_selector", None)
    args = [
        "--quick",
        "--learner",
        str(learner),
        "--out",
        str(finished.parent),
        "--part",
        "measure",
    ]
    old = json.loads((finished / "study.json").read_text())
    assert run_script(study.run, [*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"] == old["tables"]
    assert [path.name for path in finished.parent.iterdir()] == ["quick"]
    assert run_script(study.run, args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {finished / 'study.json'}"]
    assert (finished / "measured" / "knn.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}


def test_taught_folder_can_train_selectors(finished: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = [
        "--data.path", str(finished / "taught/train"), "--train.num_epochs", "1",
        "--train.batch_size", "4",
    ]  # fmt: skip
    assert main(["shots", "train", "v1", *args]) == 0
    assert (tmp_path / "runs/shots_v1/selector/selector.json").is_file()


def test_diverse_labels_need_another_folder(finished: Path, learner: Path, tmp_path: Path, capsys):
    """A penalty changes the lists that selectors learn from, not those they are compared with."""
    smoke = [str(FOLDER / "study_smoke.yaml"), "--learner", str(learner), "--part", "teach"]
    diverse = [*smoke, "--beam_diversity", "5"]
    assert run_script(study.run, [*diverse, "--out", str(finished)]) == 2
    assert "was started with beam_diversity 0.0, got 5.0" in capsys.readouterr().err
    assert run_script(study.run, [*diverse, "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["labels"]
    before = json.loads((finished / "study.json").read_text())["labels"]
    name = "examples that differ between beams"
    assert found[name] > before[name]
    records = Path("taught", "test", "records.jsonl")
    assert (tmp_path / records).read_bytes() == (finished / records).read_bytes()


def test_splits_are_disjoint(finished: Path):
    domains: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        lines = (finished / "embedded" / split / "pool" / "items.jsonl").read_text().splitlines()
        domains[split] = {json.loads(line)["domain"] for line in lines}
    assert not domains["train"] & domains["test"]
    assert not domains["train"] & domains["validation"]
    assert not domains["validation"] & domains["test"]


def test_best_fixed_is_fitted_on_other_queries(finished: Path, learner: Path, monkeypatch):
    stages = Stages(StudyConfig(learner=str(learner)).quick(), finished, torch.device("cpu"))
    queries, used = stages.queries("test"), []

    def fit_fixed(scorer: object, rows: torch.Tensor, most: int) -> PoolSelector:
        used.extend(rows.tolist())
        return Random().fit([], queries.world.pool)

    monkeypatch.setattr(methods, "fit_fixed", fit_fixed)
    methods.baseline("best_fixed", stages)
    assert used == queries.spare.tolist()
    assert not set(used) & set(queries.rows.tolist())


def test_mmr_is_tuned_for_each_number_of_shots(finished: Path, learner: Path):
    """By the likelihood of the answers to validation queries, over the whole grid."""
    config = StudyConfig(learner=str(learner)).quick()
    stages = Stages(config, finished, torch.device("cpu"))
    tuned = json.loads((finished / "study.json").read_text())["tuned"]["mmr"]
    queries, results = stages.queries("validation"), stages.results("validation")
    pool = queries.world.pool
    for count in config.shots:
        means = []
        for balance in methods.LAMBDAS:
            selector = MMR(balance).fit([], pool)
            picks = [
                selector.select(result.query, count, candidates=result.candidates).indices
                for result in results
            ]
            found = stages.scorer("validation").answers(queries.rows, torch.stack(picks))
            means.append(float(found.logprob.mean()))
        assert tuned[str(count)] == methods.LAMBDAS[means.index(max(means))]


@pytest.mark.parametrize("variant", ["v0", "v1", "v2_gru"])
def test_step_accuracy_matches_a_plain_loop(finished: Path, learner: Path, variant: str):
    """Query by query and step by step: is the teacher's next pick among the model's k best?"""
    stages = Stages(StudyConfig(learner=str(learner)).quick(), finished, torch.device("cpu"))
    queries, results = stages.queries("test"), stages.results("test")
    model = load_pointer(finished / "selectors" / f"{variant}_1")
    found = json.loads((finished / "measured" / f"{variant}_1.json").read_text())["made"]
    for count in (2, 3):
        for n, result in enumerate(results):
            vector = queries.world.queries.vectors[queries.rows[n]][None]
            candidates = queries.world.pool.vectors[queries.candidates[n]][None]
            label = list(result.shortened(count, 2, "logprob")[0].picks)
            ranks = []
            for step in range(count):
                labels = torch.tensor([label[: step + 1]])
                logits = model(vector, candidates, labels)["logits"][0, -1].tolist()
                left = [c for c in range(len(logits)) if c not in label[:step]]
                ranks.append(sorted(left, key=lambda c: -logits[c]).index(label[step]) + 1)
            columns = found[str(count)]
            for k in (1, 3, 5):
                share = sum(rank <= k for rank in ranks) / count
                assert columns[f"top{k}"][n] == pytest.approx(share, abs=1e-4)
            first = model(vector, candidates, torch.tensor([label[:1]]))["logits"][0, 0]
            std = float(first.detach().std(correction=0))
            assert columns["logits_std"][n] == pytest.approx(std, abs=1e-4)


def test_step_accuracy_of_the_oracles(finished: Path, learner: Path):
    """The last pick of the best list is the best of its step; the first is rarely the best one."""
    stages = Stages(StudyConfig(learner=str(learner)).quick(), finished, torch.device("cpu"))
    kept = {
        name: json.loads((finished / "measured" / f"{name}.json").read_text())["made"]["2"]
        for name in ("beam_oracle", "static_oracle")
    }
    for n, result in enumerate(stages.results("test")):
        first, second = result.shortened(2, 2, "logprob")[0].picks
        alone = result.logprob[0].tolist()
        order = sorted(range(len(alone)), key=lambda c: -alone[c])
        hit = float(order[0] == first)
        assert kept["beam_oracle"]["top1"][n] == pytest.approx((hit + 1) / 2)
        order.remove(first)
        assert kept["static_oracle"]["top1"][n] == pytest.approx((hit + (order[0] == second)) / 2)
    assert "top1" not in json.loads((finished / "measured" / "mmr.json").read_text())["made"]["2"]


def test_expected_figures_stand_beside_measured_ones(finished: Path):
    found = json.loads((finished / "study.json").read_text())
    figures = {row["figure"]: row for row in found["expected figures"]}
    by_name = {row["row"]: row for row in found["tables"]["2"]}
    assert figures["step top-5, %"]["expected"] == ">= 70"
    for version in ("v1", "v2", "v3"):
        assert figures["step top-1, %"][version] == by_name[version]["top1"][0]
        assert figures["std of the logits"][version] == by_name[version]["logits_std"][0]
        marks = [
            json.loads((finished / "selectors" / f"{version}_{seed}" / "trained.json").read_text())
            for seed in (0, 1)
        ]
        epochs = found["training"][version]["best epoch"]
        assert epochs == [2 * mark["best_step"] / mark["last_step"] for mark in marks]
        assert found["training"][version]["last epoch"] == [2, 2]
        assert figures["best epoch"][version] == pytest.approx(sum(epochs) / 2)
    assert figures["parameters at width 768, M"]["v1"] == pytest.approx(0.131, abs=1e-3)
    lines = printed(found)
    assert any(line.startswith(" step top-1, %") and "V1 72.5" in line for line in lines)
    assert any("steps of the best list" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_lists_near_the_best_are_counted(finished: Path):
    logprob = torch.tensor([[-2.0, -1.0, -3.0], [torch.nan, -0.5, -0.9], [-0.54, torch.nan, -0.56]])
    states = torch.tensor([[-1, -1], [0, -1], [1, -1]], dtype=torch.int32)
    result = TeacherResult(Query("q", torch.ones(2)), "abc", -3.0, 1, [], states, logprob)
    assert near_lists(result, 1) == [(1,)]
    assert near_lists(result, 2) == [(0, 1), (1, 0)]
    found = json.loads((finished / "study.json").read_text())["near best"]
    assert [numbers["examples"] for numbers in found] == [2, 3]
    for numbers in found:
        assert numbers["lists"] >= numbers["sets"] >= 1
        assert numbers["lists"] >= numbers["first picks"] >= 1


def test_missing_learner_is_refused_with_a_hint(tmp_path: Path, monkeypatch, capsys):
    args = ["--out", str(tmp_path)]
    assert run_script(study.run, [*args, "--learner", str(tmp_path / "no")]) == 2
    assert "expected a folder" in capsys.readouterr().err
    assert run_script(study.run, [*args, "--learner", str(tmp_path)]) == 2
    assert "benchmarks.shots.train_learner" in capsys.readouterr().err
    monkeypatch.setattr("eligo.pretrained.load.SHIPPED", tmp_path / "nothing")
    assert run_script(study.run, args) == 2
    assert "benchmarks.shots.train_learner" in capsys.readouterr().err


def test_unfit_learner_stops_the_study(learner: Path, finished: Path, capsys):
    args = [str(FOLDER / "study_smoke.yaml"), "--learner", str(learner), "--out", str(finished)]
    assert run_script(study.run, [*args, "--must_be_healthy"]) == 1
    assert "oracle_is_good" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["study.yaml", "study_smoke.yaml"])
def test_every_variant_has_a_training_config(name: str):
    config = load_config(StudyConfig, FOLDER / name)
    for variant in config.variants:
        assert config.run(variant, 3, Path("taught"), Path("out")).train.seed == 3


# ------------------------------------------------------------------ the summary


def row(accuracy: list[float], ndcg: list[float]) -> dict:
    return {"2": {"accuracy": accuracy, "utility": accuracy, "ndcg": ndcg, "mrr": ndcg}}


def printed(found: dict) -> list[str]:
    """Lines of a terminal of 80 columns."""
    console = Console(width=80, file=StringIO(), record=True)
    for table in study_tables(found):
        console.print(table)
    return console.export_text().splitlines()


def test_targets_are_decided_by_intervals():
    many = 400
    half, most = ([1.0, 0.0] * (many // 2)), ([1.0] * (many - 40) + [0.0] * 40)
    ranked, better = [0.5] * many, [0.75] * many
    rows = {
        "knn": [row(half, ranked)],
        "v1": [row(most, ranked), row(most, ranked)],
        "v2_gru": [row(most, ranked)] * 2,
        "v0": [row([1.0] * many, ranked)] * 2,
        "v3": [row(most, better)] * 2,
    }
    health = {
        "beam": 0.95, "static": 0.8, "zero_shot": 0.3, "chance": 0.35, "oracle_is_good": True,
        "zero_shot_is_chance": True, "pairs_beat_singles": True,
    }  # fmt: skip
    found = summarise(rows, health, [2], [str(n) for n in range(many)], 500)
    assert [target["outcome"] for target in found["targets"]] == ["reached"] * 8
    compared = {(c["row"], c["against"], c["column"]): c for c in found["comparisons"]}
    assert compared["v2_gru", "v1", "accuracy"]["better"] == "neither"
    assert compared["v0", "v1", "accuracy"]["better"] == "v0"
    assert compared["v1", "knn", "accuracy"]["difference"] == pytest.approx(40)
    lines = printed(found)
    assert any(line.startswith(" v1 ") and " 90.0 ±" in line for line in lines)
    starred = {line.split("  ")[0].strip(): line.count("*") for line in lines if " - v1" in line}
    assert starred == {"v2_gru - v1, 97.5%": 0, "v0 - v1, 97.5%": 1, "v3 - v1": 2}

    del rows["v0"]
    rows["v3"] = [row(half, ranked)] * 2
    found = summarise(rows, health, [2], [str(n) for n in range(many)], 500)
    outcome = {one["name"].split(" (")[0]: one["outcome"] for one in found["targets"]}
    assert outcome["v2_gru or v0 above v1"] == "not reached"
    assert outcome["v3 not below v1"] == "not reached"
    assert outcome["v3 above v1 in ndcg"] == "not reached"


def test_query_without_ranking_is_left_out():
    rows = {"knn": [row([1.0, 0.0, 1.0], [0.5, None, 0.7])]}
    health = dict.fromkeys(("beam", "static", "zero_shot", "chance"), 0.0)
    health |= dict.fromkeys(("oracle_is_good", "zero_shot_is_chance", "pairs_beat_singles"), False)
    found = summarise(rows, health, [2], ["a", "b", "b"], 50)["tables"]["2"][0]
    assert found["ndcg"][0] == pytest.approx(0.6)
    assert found["without ndcg"] == 1
    assert found["accuracy"][0] == pytest.approx(200 / 3)


def test_joint_bootstrap_matches_single_ones():
    generator = torch.Generator().manual_seed(0)
    columns = (
        torch.randn(3, 2, 300, generator=generator) + torch.tensor([0.0, 1.0, 5.0])[:, None, None]
    )
    together = bootstrap_means(columns.tolist(), resamples=4000)
    for column, found in zip(columns.tolist(), together, strict=True):
        alone = paired_bootstrap(column, resamples=4000)
        assert found == pytest.approx(alone, abs=0.02)
    wider = bootstrap_means(columns.tolist(), resamples=4000, level=0.975)
    assert all(w[1] < f[1] and w[2] > f[2] for w, f in zip(wider, together, strict=True))
    with pytest.raises(InputError, match="expected as many runs"):
        bootstrap_means([])


def test_queries_of_a_group_are_resampled_together():
    """Copies do not narrow an interval; unequal groups weigh by size."""
    few = torch.randn(1, 1, 40, generator=torch.Generator().manual_seed(1))
    many = few.repeat_interleave(10, 2).tolist()
    groups = [f"lexicon {n // 10}" for n in range(400)]
    once = bootstrap_means(few.tolist(), resamples=4000)[0]
    together = bootstrap_means(many, resamples=4000, groups=groups)[0]
    assert together == pytest.approx(once, abs=0.02)
    apart = bootstrap_means(many, resamples=4000)[0]
    assert apart[2] - apart[1] < 0.5 * (together[2] - together[1])
    mean, low, high = bootstrap_means([[[1.0, 0.0, 0.0]]], resamples=500, groups="abb")[0]
    assert (mean, low, high) == (pytest.approx(1 / 3), 0.0, 1.0)
    with pytest.raises(InputError, match="got 2 groups, expected one for each of 3"):
        bootstrap_means([[[1.0, 0.0, 0.0]]], groups="ab")


def test_bits_encode_every_answer():
    assert bits([1.0, 0.0, 1.0, 1.0, 0.0]) == f"{0b110110:x}"


# ------------------------------------------------------------------ the formulas


def test_labels_are_optimal():
    pool = clustered_pool()
    for kind in KINDS:
        task = Task(pool, kind, 5)
        records = task.records(range(5))
        oracle = StaticOracle(task.utility).fit([], pool)
        regret = task.regret(oracle, records)
        assert all(value >= -1e-5 for value in regret)
        if kind == "relevance":
            assert regret == pytest.approx([0] * 5, abs=1e-5)
        else:
            assert max(regret) > 0.01
        assert records[0].step_scores.shape == (SHOTS, CANDIDATES)


def test_analytic_table_is_printed(capsys):
    config = StudyConfig().quick().replace({"analytic_records": 25, "analytic_steps": 2})
    found = analytic_study(config, kinds=["order"])
    assert ["v0" in target["name"] for target in found["formula targets"]] == [True, False]
    rows = found["formulas"]
    assert [row["formula"] for row in rows] == ["order"] * 10
    assert all(row["low"] <= row["regret"] <= row["high"] for row in rows)
