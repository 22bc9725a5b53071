"""Whole runs: logs, resuming, saved plans, data from files, search."""

import json
import re
from pathlib import Path

import pytest
import torch
from tiny_task import TINY, first_batch, flat_gradient, tiny

from eligo.cli import main
from eligo.config import load_config
from eligo.scenes.config import SceneConfig
from eligo.scenes.export import ExportConfig, export_scenes
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.cost.flops import count_cost
from eligo.tokens.cost.shapes import LLAVA_7B
from eligo.tokens.model.layer_pruners import LayerPruners
from eligo.tokens.model.scorers import MarginalRelevance
from eligo.tokens.model.token_merger import TokenMerger
from eligo.tokens.plan import Plan
from eligo.tokens.training.task import TokensTask, with_counted_steps
from eligo.train import Progress, SearchConfig, fit, run_search


def test_run_logs_losses_and_evaluations(tmp_path: Path, caplog):
    """Losses (total per optimiser and unweighted), temperature, tokens, discriminator, metrics."""
    config = tiny(tmp_path, objective="adversarial", train__log_every=2)
    with caplog.at_level("INFO", logger="eligo.tokens"):
        fit(TokensTask(config), config.train)
    messages = [record.message for record in caplog.records]
    steps = [line for line in messages if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == ["step 2", "step 4"]
    number = r"[0-9.e+-]+"
    assert re.fullmatch(
        rf"step 2: token_merger and layer_pruners: task {number}, sparsity {number}, kl {number}, "
        rf"hidden {number}, adversarial {number} \| discriminator: real {number}, fake {number} \| "
        rf"temperature {number} \| kept 9 > 6 > 3 \| disc_prob_real {number}, "
        rf"disc_prob_fake {number}",
        steps[0],
    )
    evaluations = [line for line in messages if line.startswith("evaluation: ")]
    assert len(evaluations) == 2
    for name in ("baseline", "merge_only", "soft", "hard"):
        assert f"accuracy_{name} " in evaluations[0]
    lines = [json.loads(line) for line in (config.train.folder / "metrics.jsonl").open()]
    logged = next(line for line in lines if line["split"] == "train")
    weights = config.weights | {"real": 1.0, "fake": 1.0}
    for name in ("task", "sparsity", "adversarial", "real", "fake"):
        expected = weights[name] * logged[f"raw/{name}"]
        assert logged[f"loss/{name}"] == pytest.approx(expected, rel=1e-5)
    assert [logged[f"kept/{name}"] for name in ("merge", "layer_1", "layer_3")] == [9, 6, 3]


METRICS = {
    "accuracy_baseline", "accuracy_merge_only", "accuracy_soft", "accuracy_hard",
    "vision_keep_merge", "vision_keep_layer_1", "vision_keep_layer_3", "vision_keep_mean",
    "mean_length", "flops_reduction_llm", "flops_reduction_total", "kv_bytes", "temperature",
    "disc_prob_real", "disc_prob_fake", "avg_original_tokens", "avg_merged_tokens",
}  # fmt: skip


def test_resumed_run_has_the_same_weights_and_loads_as_a_plan(tmp_path: Path):
    changes = {"objective": "adversarial", "discriminator__reinit_prob": 0.5}
    whole = tiny(tmp_path / "whole", **changes)
    result = fit(TokensTask(whole), whole.train)
    assert set(result.best) >= METRICS
    assert result.best["avg_merged_tokens"] == 9

    parts = tiny(tmp_path / "parts", **changes)
    half = fit(TokensTask(parts), parts.train, on_evaluate=lambda step, _: step == 2)
    assert half.ended == "stopped"
    fit(TokensTask(parts), parts.train, resume=True)
    for name in ("token_merger", "layer_pruners", "discriminator"):
        one, other = (
            (tmp_path / run / "tokens" / "last" / f"{name}.safetensors").read_bytes()
            for run in ("whole", "parts")
        )
        assert one == other, name

    folder = result.folder
    plan = Plan.load(folder)
    assert isinstance(plan.stage1.reducer, TokenMerger)
    assert plan.counts((4, 4)) == (9, 6, 3)
    again = LayerPruners.from_pretrained(folder)
    assert again.shape.layers == (1, 3)
    for checkpoint in (folder / "last", (folder / "last").resolve()):
        loaded = Plan.load(checkpoint)
        assert loaded.counts((4, 4)) == (9, 6, 3)
        weights = TokenMerger.from_pretrained(checkpoint).state_dict()
        for name, value in loaded.stage1.reducer.state_dict().items():
            assert value.equal(weights[name])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {key for line in lines for key in line}
    assert {"loss/task", "loss/adversarial", "loss/real", "loss/fake", "temperature"} <= logged


def test_run_with_marginal_relevance_loads_as_a_plan(tmp_path: Path):
    config = tiny(tmp_path, merger__redundancy="mmr", pruners__redundancy="mmr")
    result = fit(TokensTask(config), config.train)
    plan = Plan.load(result.folder)
    plan.save(tmp_path / "saved")
    for loaded in (plan, Plan.load(tmp_path / "saved")):
        for stage in loaded.stages:
            assert isinstance(stage.reducer.peaks, MarginalRelevance)
    weights = [stage.reducer.peaks.log_weight.item() for stage in plan.stages]
    assert 0.0 not in weights  # where it starts


def test_two_stage_yaml_describes_its_saving_and_trains():
    config = load_config(TokensTrainConfig, "tokens/two_stage")
    cost = count_cost(LLAVA_7B, config.schedule(576, 32, 100))
    assert f"{cost.reduction_llm:.1%}" == "54.9%"
    assert cost.schedule.lengths[::10] == (388, 300, 250, 250)
    assert any("layer 31" in note for note in cost.warnings())
    narrow = {"image_size": 336, "layers": 32, "width": 16, "vision_width": 16, "heads": 1}
    task = TokensTask(
        config.replace({"host.model": None, "host.dtype": "float32", "host.random": narrow})
    )
    assert task.discriminator is not None
    lines = "\n".join(task.describe())
    assert "576 > 288" in lines
    assert "200 at layer 10, 150 at layer 20, 100 at layer 31" in lines
    assert "temperature: 1.0 > 0.1 after 500 of 1000 steps" in lines
    batch = first_batch(task)
    output = task.step(batch.rows(slice(0, 1)), Progress(0, 1))
    assert {"task", "adversarial", "sparsity", "real", "fake"} == set(output.losses)
    torch.stack(list(output.losses.values())).sum().backward()
    assert flat_gradient(task.pruners).isfinite().all()


@pytest.fixture(scope="module")
def vqa_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vqa") / "scenes"
    world = SceneConfig(height=56, width=56)
    export_scenes(
        ExportConfig(format="vqa", scenes=world, train=4, validation=2, test=0, questions=2), folder
    )
    return folder


def test_trains_on_a_vqa_folder(vqa_folder: Path, tmp_path: Path, capsys):
    data = {"kind": "vqa", "folder": str(vqa_folder), "validation": 3}
    tree = {key: value for key, value in TINY.items() if not key.startswith("data")}
    config = load_config(TokensTrainConfig, {"data": data}, tree | {"train.out": tmp_path})
    task = TokensTask(config)
    batch = first_batch(task)
    assert batch.inputs["input_ids"].shape[0] == 4
    assert (batch.labels[:, -1] == 2).all()
    assert not (batch.question_mask & (batch.labels != -100)).any()
    result = fit(task, config.train)
    assert "accuracy_hard" in result.best
    code = main(
        ["tokens", "evaluate", str(result.folder), "--split", "validation", "--questions", "2",
         "--device", "cpu", "--json"]
    )  # fmt: skip
    assert code == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[-1]["family"] == "all"
    assert rows[-1]["asked"] == 2


def test_epochs_count_steps(vqa_folder: Path):
    assert tiny(epochs=1, data__examples=10).train.total_steps == 3
    lines = {"kind": "vqa", "folder": str(vqa_folder)}
    tree = {key: value for key, value in TINY.items() if not key.startswith("data")}
    config = load_config(TokensTrainConfig, {"data": lines, "epochs": 2}, tree)
    counted = with_counted_steps(config)
    assert counted.train.total_steps >= 3
    TokensTask(counted)


def test_search_runs_on_the_same_loop(tmp_path: Path):
    config = tiny(tmp_path, train__total_steps=1, train__monitor="accuracy_hard")
    space = {"optim.merger.lr": {"low": 1e-4, "high": 1e-3, "log": True}, "losses.hidden": [0, 1]}
    result = run_search(config, SearchConfig(trials=2, space=space))
    assert result.num_trials == 2
    assert load_config(TokensTrainConfig, result.best_config).merger.budget == 9
