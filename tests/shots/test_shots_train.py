"""Training of selectors: names of runs, logged losses, monitors, metrics and search."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from teach_cases import WORDS

from eligo.cli import main
from eligo.config import dump_yaml, load_config
from eligo.errors import ConfigError
from eligo.shots import Pool, Query, Record, metrics
from eligo.shots.config import (
    PointerSelectorV0Config,
    PointerSelectorV1Config,
    PointerSelectorV3Config,
    ShotsTrainConfig,
)
from eligo.shots.data.records import collate
from eligo.shots.training import task as task_module
from eligo.shots.training.task import PointerTask, call, record_metrics
from eligo.shots.training.train import _SpreadCheck
from eligo.train import Progress

TRAIN = ["--num_epochs", "2", "--train.min_steps", "4", "--model.hidden_dim", "16"]
SMALL = {"d_model": 8, "hidden_dim": 8}


@pytest.fixture
def command(tmp_path: Path, monkeypatch, capsys):
    """Run a command in a folder of its own; return its JSON and stderr, or only stderr."""
    monkeypatch.chdir(tmp_path)

    def command(words: str, *more: str, code: int = 0):
        result = main([*words.split(), *more, "--json"])
        out, err = capsys.readouterr()
        assert result == code, err
        return (json.loads(out), err) if code == 0 else err

    return command


def taught(command) -> None:
    """40 taught queries, and the same ones in the format of the published design."""
    lines = [
        {"id": f"t{n}", "input": f"where is the {WORDS[n % 6]}?", "output": f"at {n % 6}"}
        for n in range(40)
    ]
    Path("shots.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command("shots embed --data shots.jsonl")
    command("shots teach --shots 2 --beam 2 --sampler.num_candidates 8")
    documented = {
        f"t{n}": {"icds": [f"t{(n + 6) % 40}", f"t{(n + 12) % 40}"], "scores": [0.5, 0.1]}
        for n in range(40)
    }
    Path("records.json").write_text(json.dumps(documented))


def lines(folder: str, split: str) -> list[dict]:
    text = (Path(folder) / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["split"] == split]


def records(kind: str, count: int = 40) -> tuple[list[Record], Pool]:
    """Records whose teacher scored all candidates (dense), the picks (picks), or nothing (bare)."""
    draw = torch.Generator().manual_seed(0)
    pool = Pool([f"e{n}" for n in range(12)], torch.randn(12, 8, generator=draw))
    made = []
    for n in range(count):
        names = [pool.ids[i] for i in torch.randperm(12, generator=draw)[:6]]
        steps = torch.rand(2, 6, generator=draw)
        query = Query(f"q{n}", torch.randn(8, generator=draw))
        scores = {"picks": {"scores": steps[:, 0].tolist()}, "dense": {"step_scores": steps}}
        made.append(Record(query, names[:2], names, **scores.get(kind, {})))
    return made, pool


def make_task(config, kind: str, **changes) -> PointerTask:
    options = {"batch_size": 8, "lr": 1e-3, "weight_decay": 0.0, "validation": 0.3, "seed": 0}
    return PointerTask(config, *records(kind), **{**options, **changes})


@pytest.mark.parametrize(
    ("source", "changes", "name"),
    [
        ("v1", {}, "shots_v1"),
        ("v2_gru", {}, "shots_v2_gru"),
        ("v1", {"model.version": "v3"}, "shots_v3"),
        ("v1", {"model.version": "v0"}, "shots_v0"),
        ("v3", {"model.base": "v2", "model.state": "gate"}, "shots_v3_v2_gate"),
        ("v1", {"model.version": "v3", "train.name": "mine"}, "mine"),
        ("v1", {"train.name": "shots"}, "shots"),
        ("v3", {"train.name": "{model}_small"}, "v3_small"),
    ],
)
def test_run_name_follows_the_model(source: str, changes: dict, name: str):
    config = load_config(ShotsTrainConfig, f"shots/{source}", changes)
    assert config.train.name == name
    assert load_config(ShotsTrainConfig, config).train.name == name


def test_run_name_without_a_file():
    assert ShotsTrainConfig(model=PointerSelectorV0Config()).train.name == "shots_v0"


@pytest.mark.parametrize(("version", "smoothing"), [("v0", 0.1), ("v2", 0.1), ("v3", 0.2)])
def test_other_version_has_its_own_label_smoothing(version: str, smoothing: float):
    config = load_config(ShotsTrainConfig, "shots/v1", {"model.version": version})
    assert config.model.label_smoothing == smoothing


def test_published_command_trains_into_its_own_folder(command):
    taught(command)
    fitted, _ = command("shots train taught --model_version v3", *TRAIN)
    assert fitted["folder"] == "runs/shots_v3"
    assert not Path("runs/shots_v1").exists()


def test_step_logs_losses_without_weight():
    config = PointerSelectorV3Config(**SMALL, ranking_loss_weight=0.25, dropout=0.0)
    task = make_task(config, "dense")
    batch = collate(task.training[:5], task.pool)
    output = task.step(batch, Progress(0, 1))
    assert set(output.metrics) == {"ce_loss", "ranking_loss"}
    assert torch.equal(output.losses["ce"], output.metrics["ce_loss"])
    assert torch.equal(output.losses["ranking"], 0.25 * output.metrics["ranking_loss"])
    without = make_task(PointerSelectorV1Config(**SMALL), "dense").step(batch, Progress(0, 1))
    assert set(without.metrics) == {"ce_loss"}


def test_validation_losses_are_those_of_training_without_dropout():
    config = PointerSelectorV3Config(**SMALL, ranking_loss_weight=0.25)
    task = make_task(config, "dense")
    task.model.eval()
    found = task.evaluate()
    expected = call(task.model, collate(task.validation, task.pool))
    for name in ("loss", "ce_loss", "ranking_loss"):
        assert found[name] == pytest.approx(expected[name].item(), rel=1e-6)
    assert found["loss"] == pytest.approx(found["ce_loss"] + 0.25 * found["ranking_loss"])


@pytest.mark.parametrize(
    ("version", "kind"),
    [("v1", "dense"), ("v1", "picks"), ("v1", "bare"), ("v3", "dense"), ("v3", "picks")],
)
def test_metric_names_are_known_before_training(version: str, kind: str):
    config = {"v1": PointerSelectorV1Config, "v3": PointerSelectorV3Config}[version](**SMALL)
    task = make_task(config, kind)
    task.model.eval()
    found = task.evaluate()
    assert set(task.metric_names()) == set(found)
    assert set(found) >= {"top1", "top3", "top5", "mrr", "loss", "ce_loss", "logits_std"}
    assert ("ranking_loss" in found) == (version == "v3")
    assert ("ndcg_labels" in found, "ndcg" in found) == (kind == "picks", kind == "dense")


def test_metrics_do_not_depend_on_evaluation_batches(monkeypatch):
    """Records of several lengths, of which only some have scores."""
    dense, pool = records("dense", 4)
    bare = records("bare", 4)[0]
    short = [Record(record.query, record.picks[:1], record.candidates) for record in bare]
    task = make_task(PointerSelectorV1Config(**SMALL), "dense")
    encoded = [task_module.encode_record(record, pool, 6) for record in [*short, *dense]]
    whole = record_metrics(task.model.eval(), encoded, pool)
    monkeypatch.setattr(task_module, "_EVAL_BATCH", 3)
    parts = record_metrics(task.model, encoded, pool)
    assert whole.keys() == parts.keys()
    for name in whole.keys() - {"loss", "ce_loss"}:  # means of a batch
        torch.testing.assert_close(parts[name], whole[name], equal_nan=True)
    assert record_metrics(task.model, [], pool) == {}


def test_ndcg_of_labels_against_plain_python():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 7, generator=draw)
    logits[torch.rand(40, 7, generator=draw) < 0.2] = -torch.inf
    labels = torch.stack([torch.randperm(7, generator=draw)[:3] for _ in range(40)])
    labels[torch.rand(40, 3, generator=draw) < 0.2] = -1
    scores = torch.randn(40, 3, generator=draw)
    scores[torch.rand(40, 3, generator=draw) < 0.2] = torch.nan
    found = metrics.ndcg_labels(logits, labels, scores, 3)
    for row in range(40):
        gains = dict.fromkeys(range(7), 0.0)
        for label, score in zip(labels[row].tolist(), scores[row].tolist(), strict=True):
            if label >= 0 and score > 0 and logits[row, label] > -math.inf:
                gains[label] = score
        real = [i for i in range(7) if logits[row, i] > -math.inf]
        ranked = sorted(real, key=lambda i: -float(logits[row, i]))
        ideal = sorted((gains[i] for i in real), reverse=True)

        def dcg(values: list[float]) -> float:
            return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(values[:3]))

        best = dcg(ideal)
        expected = dcg([gains[i] for i in ranked]) / best if best > 0 else math.nan
        assert float(found[row]) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert 0 < int(found.isnan().sum()) < 20


def test_lowest_loss_can_be_monitored(command):
    taught(command)
    flags = ["--train.monitor", "loss", "--train.mode", "min"]
    fitted, _ = command("shots train v3", *TRAIN, *flags)
    losses = [line["loss"] for line in lines("runs/shots_v3", "validation")]
    assert fitted["best"]["loss"] == min(losses)
    assert fitted["best"]["logits_std"] > 0
    training = lines("runs/shots_v3", "train")[-1]
    assert training["loss"] == pytest.approx(training["ce_loss"] + 0.1 * training["ranking_loss"])


def test_invalid_monitors_are_refused_before_training(command):
    taught(command)
    err = command("shots train v1 --train.monitor loss", *TRAIN, code=2)
    assert "train: mode: got max for the monitor loss, expected min (--train.mode min)" in err
    err = command("shots train v1 --train.monitor ndgc", *TRAIN, code=2)
    assert "'ndgc' is not among the validation metrics: loss, ce_loss, top1" in err
    flags = ["--train.monitor", "ranking_loss", "--train.mode", "min"]
    assert "'ranking_loss' is not among" in command("shots train v1", *TRAIN, *flags, code=2)
    assert not list(Path().glob("runs/*/checkpoints"))


def test_loss_is_never_maximised():
    with pytest.raises(ConfigError, match="got max for the monitor ce_loss, expected min"):
        load_config(ShotsTrainConfig, "shots/v1", {"train.monitor": "ce_loss"})


def test_published_records_report_ndcg_of_labels(command):
    taught(command)
    flags = ["--data.embedded", "embedded", "--train.monitor", "ndcg_labels"]
    fitted, _ = command("shots train v3 records.json", *TRAIN, *flags)
    values = [line["ndcg_labels"] for line in lines("runs/shots_v3", "validation")]
    assert fitted["best"]["ndcg_labels"] == max(values) > 0
    assert "ndcg" not in fitted["best"]


@pytest.mark.parametrize("data", ["taught", "records.json --data.embedded embedded"])
def test_smoke_run_on_own_records(command, data: str):
    taught(command)
    for _ in range(2):  # the second replaces the first
        fitted, _ = command(f"shots train v3 {data} --smoke")
        assert (fitted["folder"], fitted["last_step"]) == ("runs/shots_v3_smoke", 2)


def test_spread_of_logits_warns_once(caplog):
    check = _SpreadCheck()
    for step, std in enumerate([0.8, 1.5, 0.4, 0.3, 2.0]):
        assert check(step, {"logits_std": std}) is False
    [warning] = caplog.messages
    assert "logits_std is 0.400 at step 2, outside 0.8 to 1.5: the scores hardly" in warning
    caplog.clear()
    assert _SpreadCheck()(7, {"logits_std": 1.51}) is False
    assert "too sure of few candidates" in caplog.messages[0]
    assert _SpreadCheck()(7, {}) is False  # one candidate: no spread


def test_training_warns_of_flat_logits(command):
    taught(command)
    _, err = command("shots train v1 --model.residual false --model.temperature 5", *TRAIN)
    assert err.count("logits_std is ") == 1
    assert all("logits_std" in line for line in lines("runs/shots_v1", "validation"))


def test_result_counts_epochs_to_the_best_step(command):
    taught(command)
    fitted, _ = command("shots train v1 --batch_size 9", *TRAIN)  # 36 records: 4 steps per epoch
    assert fitted["last_step"] == 8
    assert fitted["best_epoch"] == fitted["best_step"] / 4
    assert {"top1", "top5"} <= fitted["best"].keys()


def test_search_tries_each_ranking_weight_once(command):
    pytest.importorskip("optuna", reason="optuna is not installed (extra: search)")
    taught(command)
    tree = {
        "extends": "shots/v3_grid",
        "data": {"path": "taught"},
        "train": {"num_epochs": 2, "min_steps": 1},
        "model": {"hidden_dim": 16},
    }
    Path("grid.yaml").write_text(dump_yaml(tree))
    found, _ = command("search grid.yaml")
    assert (found["num_trials"], found["folder"]) == (4, "runs/shots_v3_search")
    trials = [Path(found["folder"]) / f"trial_{n:04d}" for n in range(4)]
    configs = [load_config(ShotsTrainConfig, trial / "config.yaml") for trial in trials]
    weights = Counter(config.model.ranking_loss_weight for config in configs)
    assert weights == Counter([0.05, 0.1, 0.15, 0.2])
    assert [config.train.total_steps for config in configs] == [2] * 4  # of 2 epochs
    assert all(len(lines(str(trial), "validation")) == 2 for trial in trials)  # none is pruned
    fitted, _ = command(f"shots train {found['best_config']}")
    assert fitted["folder"] == "runs/shots_v3"
    assert fitted["best"]["ndcg"] == found["best_value"]
