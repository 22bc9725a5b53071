"""The exam from end to end with a learner that knows nothing, and what its judge says."""

import json
from io import StringIO
from itertools import permutations
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.shots.analytic import CANDIDATES, SHOTS, Task, analytic_exam, clustered_pool
from benchmarks.shots.analytic_utilities import KINDS, AnalyticUtility, list_values
from benchmarks.shots.tables import exam_tables
from benchmarks.studies import QUICK as REMARK
from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.report.intervals import bootstrap_means, paired_bootstrap
from eligo.scenes.vlm import build_processor, build_vlm, save_vlm
from eligo.shots import Query
from eligo.shots.baselines import MMR, Random, StaticOracle
from eligo.shots.learner import rows
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.learner_config import LearnerConfig
from eligo.shots.learner.measure import bits
from eligo.shots.learner.stages import Stages
from eligo.shots.learner.verdict import judge
from eligo.shots.selector import PoolSelector

TINY = load_config(
    LearnerConfig, Path(__file__).parents[2] / "benchmarks" / "shots" / "learner.yaml"
).smoke()


@pytest.fixture(scope="module")
def learner(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("learner")
    save_vlm(build_vlm(TINY.model), build_processor(TINY.model), folder)
    return folder


@pytest.fixture(scope="module")
def held(learner: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exam")
    args = ["--quick", "--learner", str(learner), "--out", str(out), "--part", "measure"]
    assert main(["shots", "exam", *args]) == 0
    return out / "quick"


def test_the_table_is_whole(held: Path):
    found = json.loads((held / "exam.json").read_text())
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
            assert low <= mean <= high
            # What the best list is worth is a sum: utility and regret always make it up.
            whole = mean + by_name[row]["utility"][0]
            assert whole == pytest.approx(by_name["beam_oracle"]["utility"][0], abs=1e-4)
    assert {must["must"].split(":")[0] for must in found["musts"]} >= {"health"}
    assert all(must["met"] in ("met", "MISSED") for must in found["musts"])
    assert found["command"].startswith("eligo")
    assert len(found["right"]) == 2 * (8 + 5 * 2)


def test_it_goes_on_where_it_stopped(held: Path, learner: Path, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in held.rglob("*.safetensors")}
    (held / "measured" / "knn.json").unlink()
    monkeypatch.setattr("eligo.shots.learner.stages.teach_together", None)
    monkeypatch.setattr("eligo.shots.learner.arms.train_selector", None)
    args = ["--quick", "--learner", str(learner), "--out", str(held.parent), "--part", "measure"]
    old = json.loads((held / "exam.json").read_text())
    assert main(["shots", "exam", *args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"] == old["tables"]
    assert [path.name for path in held.parent.iterdir()] == ["quick"]  # the real one is not spoiled
    assert main(["shots", "exam", *args]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [REMARK, f"written: {held / 'exam.json'}"]
    assert (held / "measured" / "knn.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in held.rglob("*.safetensors")}


def test_its_lessons_are_those_of_teach(held: Path, tmp_path: Path, monkeypatch, capsys):
    """So that a selector can be trained on them from the command line."""
    monkeypatch.chdir(tmp_path)
    told = [
        "--data.path", str(held / "taught/train"), "--train.num_epochs", "1",
        "--train.batch_size", "4",
    ]  # fmt: skip
    assert main(["shots", "train", "v1", *told]) == 0
    assert (tmp_path / "runs/shots_v1/selector/selector.json").is_file()


def test_splits_share_nothing(held: Path):
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        lines = (held / "embedded" / split / "pool" / "items.jsonl").read_text().splitlines()
        seen[split] = {json.loads(line)["domain"] for line in lines}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]


def test_best_fixed_never_sees_what_is_asked(held: Path, learner: Path, monkeypatch):
    stages = Stages(ExamConfig(learner=str(learner)).quick(), held, torch.device("cpu"))
    asked, seen = stages.asked("test"), []

    def fit_fixed(scorer: object, queries: torch.Tensor, most: int) -> PoolSelector:
        seen.extend(queries.tolist())
        return Random().fit([], asked.world.pool)

    monkeypatch.setattr(rows, "fit_fixed", fit_fixed)
    rows.baseline("best_fixed", stages)
    assert seen == asked.spare.tolist()
    assert not set(seen) & set(asked.queries.tolist())


def test_mmr_is_tuned_for_each_number_of_shots(held: Path, learner: Path):
    """By the likelihood of answers to validation queries, over the whole grid."""
    config = ExamConfig(learner=str(learner)).quick()
    stages = Stages(config, held, torch.device("cpu"))
    told = json.loads((held / "exam.json").read_text())["tuned"]["mmr"]
    asked, lessons = stages.asked("validation"), stages.lessons("validation")
    for count in config.shots:
        likely = []
        for balance in rows.LAMBDAS:
            selector = MMR(balance).fit([], asked.world.pool)
            names = [
                asked.world.pool.rows(
                    asked.world.pool.picked(
                        selector.select(lesson.query, count, candidates=lesson.candidates)
                    )
                )
                for lesson in lessons
            ]
            found = stages.scorer("validation").answers(asked.queries, torch.stack(names))
            likely.append(float(found.logprob.mean()))
        assert told[str(count)] == rows.LAMBDAS[likely.index(max(likely))]


def test_without_a_learner_it_says_how_to_get_one(tmp_path: Path, monkeypatch, capsys):
    args = ["shots", "exam", "--out", str(tmp_path)]
    assert main([*args, "--learner", str(tmp_path / "no")]) == 2
    assert "expected a folder" in capsys.readouterr().err
    assert main([*args, "--learner", str(tmp_path)]) == 2
    assert "eligo shots train-learner" in capsys.readouterr().err
    monkeypatch.setattr("eligo.pretrained.load.SHIPPED", tmp_path / "nothing")
    assert main(args) == 2
    assert "eligo shots train-learner" in capsys.readouterr().err


def test_an_exam_that_is_none_stops(learner: Path, held: Path, capsys):
    args = ["exam_smoke", "--learner", str(learner), "--out", str(held)]
    assert main(["shots", "exam", *args, "--must_be_healthy"]) == 1
    assert "oracle_is_good" in capsys.readouterr().err


# ------------------------------------------------------------------ the verdict


def row(accuracy: list[float], ndcg: list[float]) -> dict:
    return {"2": {"accuracy": accuracy, "utility": accuracy, "ndcg": ndcg, "mrr": ndcg}}


def printed(found: dict) -> list[str]:
    """The lines of a narrow terminal."""
    console = Console(width=80, file=StringIO(), record=True)
    for table in exam_tables(found):
        console.print(table)
    return console.export_text().splitlines()


def test_musts_are_judged_by_intervals():
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
    found = judge(rows, health, [2], [str(n) for n in range(many)], 500)
    assert [must["met"] for must in found["musts"]] == ["met"] * 8
    told = {(c["row"], c["against"], c["column"]): c for c in found["comparisons"]}
    assert told["v2_gru", "v1", "accuracy"]["better"] == "neither"
    assert told["v0", "v1", "accuracy"]["better"] == "v0"
    assert told["v1", "knn", "accuracy"]["difference"] == pytest.approx(40)
    lines = printed(found)
    assert any(line.startswith(" v1 ") and " 90.0 ±" in line for line in lines)
    starred = {line.split("  ")[0].strip(): line.count("*") for line in lines if " - v1" in line}
    assert starred == {"v2_gru - v1, 97.5%": 0, "v0 - v1, 97.5%": 1, "v3 - v1": 2}

    del rows["v0"]
    rows["v3"] = [row(half, ranked)] * 2
    found = judge(rows, health, [2], [str(n) for n in range(many)], 500)
    met = {must["must"].split(" (")[0]: must["met"] for must in found["musts"]}
    assert met["v2_gru or v0 above v1"] == "MISSED"
    assert met["v3 not below v1"] == "MISSED"
    assert met["v3 above v1 in ndcg"] == "MISSED"


def test_a_query_without_ranking_is_left_out():
    rows = {"knn": [row([1.0, 0.0, 1.0], [0.5, None, 0.7])]}
    health = dict.fromkeys(("beam", "static", "zero_shot", "chance"), 0.0)
    health |= dict.fromkeys(("oracle_is_good", "zero_shot_is_chance", "pairs_beat_singles"), False)
    found = judge(rows, health, [2], ["a", "b", "b"], 50)["tables"]["2"][0]
    assert found["ndcg"][0] == pytest.approx(0.6)
    assert found["without ndcg"] == 1
    assert found["accuracy"][0] == pytest.approx(200 / 3)


def test_many_columns_are_resampled_as_one():
    """The same intervals as one by one, up to chance; a higher level is wider."""
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


def test_queries_of_a_group_are_drawn_together():
    """Copies of a value tell nothing new: as wide as one of each; unequal groups weigh by size."""
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


def test_bits_keep_every_answer():
    assert bits([1.0, 0.0, 1.0, 1.0, 0.0]) == f"{0b110110:x}"


# ------------------------------------------------------------------ the formulas


@pytest.mark.parametrize("kind", KINDS)
def test_all_lists_at_once_have_the_values_of_the_formula(kind):
    pool = clustered_pool()
    query, rows = Query("q", torch.randn(16)), torch.randperm(240)[:5]
    names, utility = pool.names(rows), AnalyticUtility(pool, kind)
    lists = torch.tensor(list(permutations(range(5), 3)))
    found = list_values(pool.vectors[rows], query.vector, lists, kind)
    for told, value in zip(lists.tolist(), found.tolist(), strict=True):
        picks = [names[place] for place in told]
        expected = utility.values(query, tuple(picks[:-1]), picks[-1:])
        assert value == pytest.approx(float(expected), abs=1e-5)


def test_labels_are_the_optimum_and_a_static_oracle_has_none_to_regret_on_relevance():
    pool = clustered_pool()
    for kind in KINDS:
        task = Task(pool, kind, 5)
        records = task.records(range(5))
        oracle = StaticOracle(task.utility).fit([], pool)
        lost = task.regret(oracle, records)
        assert all(value >= -1e-5 for value in lost)  # nothing is above the optimum
        if kind == "relevance":
            assert lost == pytest.approx([0] * 5, abs=1e-5)
        else:
            assert max(lost) > 0.01
        assert records[0].step_scores.shape == (SHOTS, CANDIDATES)


def test_the_analytic_table(capsys):
    config = ExamConfig().quick().replace({"analytic_records": 25, "analytic_steps": 2})
    found = analytic_exam(config, kinds=["order"])
    assert ["v0" in must["must"] for must in found["formula musts"]] == [True, False]
    rows = found["formulas"]
    assert [row["formula"] for row in rows] == ["order"] * 9
    assert all(row["low"] <= row["regret"] <= row["high"] for row in rows)


# -------------------------------------------------------------- the committed result


def test_the_committed_result_follows_from_its_answers():
    path = Path(__file__).parents[2] / "benchmarks" / "shots" / "results" / "study.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    config = ExamConfig.model_validate(told["config"])
    number = config.lexicons.test * config.queries
    rows: dict[str, list[dict[str, dict[str, list[float | None]]]]] = {}
    for name, packed in told["right"].items():
        run, _, shots = name.partition("@")
        row, _, seed = run.partition("#")
        right = [float(bit) for bit in f"{int(packed, 16):b}"[1:]]
        assert len(right) == number
        runs = rows.setdefault(row, [])
        if int(seed) == len(runs):
            runs.append({})
        runs[int(seed)][shots] = {"accuracy": list(right)}
    lexicons = [str(query // config.queries) for query in range(number)]
    shots = config.shots[0]
    found = judge(rows, told["health"], [shots], lexicons, config.resamples)
    table = told["tables"][str(shots)]
    assert [row["row"] for row in table] == list(rows)
    for ours, theirs in zip(found["tables"][str(shots)], table, strict=True):
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-9)
    theirs = [
        one for one in told["comparisons"] if one["column"] == "accuracy" and one["shots"] == shots
    ]
    for ours, one in zip(found["comparisons"], theirs, strict=True):
        assert ours["low"] == pytest.approx(one["low"], abs=1e-9)
        assert ours["better"] == one["better"]
    judged = {must["must"]: must for must in told["musts"]}
    assert len(judged) == 8
    assert len(found["musts"]) == 6  # two are of rankings
    for must in found["musts"]:
        theirs = judged[must["must"]]
        assert (must["bar"], must["met"]) == (theirs["bar"], theirs["met"])
        assert must["found"] == pytest.approx(theirs["found"], abs=1e-9)
    bars = [must["bar"] for must in told["musts"]]
    assert bars == [">= 0.9", "<= 0.05", ">= 0.1", "> 0", "> 0", "> -1.0", "> 0", "> 0"]
