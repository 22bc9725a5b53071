"""Training configs, including keys of the two-stage pruning design, and the shipped YAMLs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from eligo.cli import main
from eligo.cli.registry import load_run_config
from eligo.cli.search import _read
from eligo.config import dump_yaml, load_config, read_layer, shipped_configs, validate
from eligo.config.effects import unused_keys
from eligo.errors import ConfigError
from eligo.tokens.config import MergerConfig, PrunersConfig, TokensTrainConfig
from eligo.tokens.cost.flops import count_cost
from eligo.tokens.cost.shapes import LLAVA_7B
from eligo.tokens.training.task import TokensTask
from eligo.train import fit

GUIDE = {
    "trainer_settings": {
        "dl_settings": {
            "epochs": 1,
            "batch_size": "12",
            "optimizers": {
                "token_merger": {"lr": "2e-05"},
                "layer_pruners": {"lr": "3e-05"},
                "discriminator": {"lr": "5e-04"},
            },
        }
    },
    "method_settings": {
        "merger_type": "question_aware",
        "merge_ratio": 0.6,
        "target_merge_tokens": 346,
        "merge_sparsity_weight": "5e-4",
        "pruning_layers": [5, 15, 25],
        "pruner_d_internal": 256,
        "pruner_num_heads": 8,
        "pruner_type": "cross_attention",
        "temperature": 2.0,
        "temperature_min": 0.2,
        "temperature_anneal_rate": 0.25,
        "adv_loss_weight": 0.5,
        "task_loss_weight": 50.0,
        "disc_reinit_prob": 0.1,
        "max_vision_tokens": 1200,
        "image_max_size": 800,
    },
    "manager_settings": {"mode": "optuna", "available_gpus": [0, 1, 2, 3], "gpus_per_subtask": 2},
    "search_settings": {"enable": True, "n_trials": 50},
}


def two_stage(**changes):
    return load_config(TokensTrainConfig, GUIDE, changes)


def test_every_key_of_the_two_stage_design_is_translated():
    config = two_stage()
    assert config.train.batch_size == 12
    assert config.train.total_steps == 1000  # one pass over 12,000 examples
    assert config.optim.merger.lr == 2e-5
    assert config.optim.pruners.lr == 3e-5
    assert config.optim.discriminator.lr == 5e-4
    assert config.optim.merger.schedule.warmup == 0.1
    assert config.merger.kind == "question_aware"
    assert config.merger.resolve(576) == 346
    assert (config.pruners.layers, config.pruners.dim, config.pruners.num_heads) == (
        (5, 15, 25), 256, 8,
    )  # fmt: skip
    assert config.temperature.model_dump() == {"start": 2.0, "end": 0.2, "anneal_fraction": 0.25}
    assert config.objective == "adversarial"
    assert config.weights == {
        "task": 50.0, "kl": 0.0, "hidden": 0.0, "attention": 0.0, "adversarial": 0.5,
        "sparsity": 5e-4,
    }  # fmt: skip
    assert config.discriminator.reinit_prob == 0.1
    assert (config.data.max_vision_tokens, config.data.image_max_size) == (1200, 800)
    assert config.search.trials == 50
    assert config.search.gpus == (0, 1, 2, 3)
    assert config.search.gpus_per_worker == 2


def test_flags_override_translated_keys():
    config = two_stage(
        **{"optim.merger.weight_decay": 0.0, "train.batch_size": 6, "train.name": "x"}
    )
    assert config.train.batch_size == 6
    assert config.train.total_steps == 2000
    assert config.optim.merger.lr == 2e-5
    assert config.optim.merger.weight_decay == 0
    assert two_stage(objective="distill").weights["kl"] == 1


def test_conflicting_keys_are_refused():
    with pytest.raises(ConfigError, match=r"merge_ratio: is 0\.6, but merger\.ratio is 0\.5"):
        load_config(TokensTrainConfig, GUIDE | {"merger": {"ratio": 0.5}})
    load_config(TokensTrainConfig, GUIDE | {"merger": {"ratio": 0.6}})


def test_unknown_keys_of_the_two_stage_design_are_named():
    wrong = GUIDE | {"method_settings": {"merge_rato": 0.5}}
    with pytest.raises(ConfigError, match=r"merge_rato.*did you mean method_settings\.merge_ratio"):
        load_config(TokensTrainConfig, wrong)
    wrong = GUIDE | {"trainer_settings": {"dl_settings": {"max_vision_tokens": 1200}}}
    with pytest.raises(ConfigError, match=r"did you mean method_settings\.max_vision_tokens\?"):
        load_config(TokensTrainConfig, wrong)
    wrong = GUIDE | {"method_settings": {"merge_ratio": "half"}}
    with pytest.raises(ConfigError, match=r"merger\.ratio: got 'half', expected a valid number"):
        load_config(TokensTrainConfig, wrong)


@pytest.mark.parametrize(
    ("settings", "tokens", "merged"),
    [
        ({}, 576, 288),
        ({"ratio": 0.6}, 576, 346),
        ({"ratio": 0.4}, 576, 230),
        ({"ratio": 0.6, "budget": 346}, 576, 346),
        ({"budget": 64}, 576, 64),
        ({"ratio": 0.01}, 16, 1),
    ],
)
def test_ratio_or_budget_sets_the_merged_tokens(settings, tokens, merged):
    assert MergerConfig(**settings).resolve(tokens) == merged


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match=r"is 288, but merger\.budget is 300"):
        MergerConfig(ratio=0.5, budget=300).resolve(576)
    with pytest.raises(ConfigError, match="got 300, expected at most 256"):
        MergerConfig(budget=300).resolve(256)
    for layers in ([0, 3], [3, 2], [3, 32], [3, 3]):
        with pytest.raises(ConfigError, match="expected rising layers from 1 to 31"):
            PrunersConfig(layers=layers).resolve(288, 32)
    with pytest.raises(ConfigError, match="got 1 for 2 layers"):
        PrunersConfig(layers=[2, 3], budgets=[5]).resolve(288, 32)
    for budgets in ([200, 210], [300, 100], [200, 0]):
        with pytest.raises(ConfigError, match="a cut cannot keep more"):
            PrunersConfig(layers=[2, 3], budgets=budgets).resolve(288, 32)
    with pytest.raises(ConfigError, match="nothing to train"):
        load_config(TokensTrainConfig, {"merger": None, "pruners": None})
    with pytest.raises(ConfigError, match="0 < end <= start"):
        load_config(TokensTrainConfig, {"temperature": {"start": 0.1, "end": 1.0}})


def test_smoke_run_of_a_tiny_host_starts_from_no_weights():
    config = TokensTrainConfig().replace({"train.init_from": "runs/a/best"})
    assert config.smoke().train.init_from is None


def test_default_plan_for_two_model_depths():
    config = TokensTrainConfig()
    assert config.schedule(576, 32).cuts == ((2, 200), (8, 150), (16, 100))
    assert config.schedule(576, 12).cuts == ((1, 200), (3, 150), (6, 100))
    assert f"{count_cost(LLAVA_7B, config.schedule(576, 32)).reduction_llm:.1%}" == "64.4%"
    # Seven cuts, as in the two-stage design: evenly down to the same end, never rising.
    many = PrunersConfig(layers=[8, 12, 16, 20, 24, 28, 31]).resolve(288, 32)
    budgets = [budget for _, budget in many]
    assert (budgets[0], budgets[-1]) == (200, 100)
    assert budgets == sorted(budgets, reverse=True)


def shipped(name: str):
    if name == "search":
        config, search = _read("tokens/search")
        lowest = {key: _low(choices) for key, choices in search.space.items()}
        return load_config(type(config), config, lowest)
    return load_run_config(name, family="tokens")


OURS = ("default", "llava15", "quick", "search", "two_stage")


@pytest.mark.parametrize("name", OURS)
def test_every_shipped_config_trains_in_smoke_form(name, tmp_path):
    config = shipped(name)
    assert name in shipped_configs("tokens")
    assert config.train.monitor == "accuracy_hard"
    assert config.train.mode == "max"
    small = config.tiny().replace({"train.out": tmp_path})
    assert load_config(TokensTrainConfig, small.model_dump(mode="json")) == small
    result = fit(TokensTask(small), small.train)
    assert result.last_step == 2
    assert result.skipped == 0


def _low(choices):
    return choices[0] if isinstance(choices, list) else choices.low


def test_search_reads_the_search_section_of_the_two_stage_design():
    config, search = _read("tokens/two_stage")
    assert search.trials == 50
    assert search.space
    assert config.search is None


def switched(tmp_path, monkeypatch, **sections):
    """A file of the design's own sections only, in the working folder."""
    monkeypatch.chdir(tmp_path)
    tree = {key: value for key, value in GUIDE.items() if not key.startswith(("search", "manag"))}
    Path("design.yaml").write_text(dump_yaml(tree | sections))
    return "design.yaml"


ASKS = [
    ({"mode": "optuna"}, {"enable": True, "n_trials": 50}, "search_settings.enable"),
    ({"mode": "optuna"}, {"n_trials": 50}, "manager_settings.mode"),
    ({"mode": "single"}, {"enable": True}, "search_settings.enable"),
    ({}, {"enable": True}, "search_settings.enable"),
]


@pytest.mark.parametrize(("manager", "search", "key"), ASKS)
def test_file_that_asks_for_a_search(manager, search, key, tmp_path, monkeypatch, capsys):
    sections = {"manager_settings": manager, "search_settings": search}
    source = switched(tmp_path, monkeypatch, **{k: v for k, v in sections.items() if v})
    config, section = _read(source)  # without a task and a space
    assert isinstance(config, TokensTrainConfig)
    assert section.trials == search.get("n_trials", section.trials)
    assert set(section.space) == {"optim.merger.lr", "optim.pruners.lr", "losses.task"}
    assert main(["tokens", "train", source]) == 2
    (line,) = capsys.readouterr().err.replace("\n", " ").split("error: ")[1:]
    assert f"{key}: search.enable: asks for a search: run `eligo search design.yaml`" in line
    assert "set `enable: false` to train once" in line


@pytest.mark.parametrize(
    ("manager", "search"),
    [({"mode": "optuna"}, {"enable": False}), ({"mode": "single"}, {"n_trials": 3})],
)
def test_file_for_one_training(manager, search, tmp_path, monkeypatch):
    sections = {"manager_settings": manager, "search_settings": search}
    source = switched(tmp_path, monkeypatch, **sections)
    assert load_config(TokensTrainConfig, source).search.enable is False
    with pytest.raises(ConfigError, match="is false: this file is for one training: `eligo tokens"):
        _read(source)


def test_search_of_a_file_without_its_section_names_both_forms(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no `search:` .*; or `search_settings: \{n_trials: 50"):
        _read(switched(tmp_path, monkeypatch))


def test_shipped_two_stage_config_trains_and_is_searched():
    assert load_run_config("two_stage", family="tokens").search.enable is None
    assert _read("tokens/two_stage")[1].enable is None


def test_switches_that_disagree_are_reported(tmp_path, monkeypatch):
    sections = {"manager_settings": {"mode": "optuna"}, "search_settings": {"enable": False}}
    layer = read_layer(switched(tmp_path, monkeypatch, **sections))
    lines = unused_keys(validate(TokensTrainConfig, layer), layer)
    (line,) = [line for line in lines if "manager_settings.mode" in line]
    assert line.endswith(": search_settings.enable decides")


@pytest.mark.parametrize(
    ("mode", "hint"), [("optina", "; did you mean optuna?"), (3, ""), ("grid", "")]
)
def test_unknown_mode_is_refused(mode, hint, tmp_path, monkeypatch):
    source = switched(tmp_path, monkeypatch, manager_settings={"mode": mode})
    with pytest.raises(ConfigError) as error:
        load_config(TokensTrainConfig, source)
    assert f"manager_settings.mode: got {mode!r}, expected optuna (a search) or single" in str(
        error.value
    )
    assert str(error.value).endswith(f"(one training){hint}")


def test_plain_config_of_the_design_names_the_missing_host():
    config = load_config(TokensTrainConfig, GUIDE | {"method_settings": {"pruning_layers": [31]}})
    with pytest.raises(ConfigError, match=r"the host has 12.* No host\.model is set") as error:
        config.schedule(576, 12)
    assert "e.g. host.model: llava-hf/llava-1.5-7b-hf" in str(error.value)
    with pytest.raises(ConfigError) as error:
        config.replace({"host.model": "vlm"}).schedule(576, 12)
    assert "host.model" not in str(error.value)


def test_gpus_in_a_training_name_the_launcher(tmp_path, monkeypatch, caplog):
    sections = {"manager_settings": {"available_gpus": [0, 1, 2, 3], "gpus_per_subtask": 2}}
    source = switched(tmp_path, monkeypatch, **sections)
    monkeypatch.setattr("eligo.cli.tokens.train.print_outcome", lambda *_: None)
    monkeypatch.setattr("eligo.train.fit", lambda *_, **__: None)
    args = ["tokens", "train", source, "--smoke", "--train.out", str(tmp_path)]
    with caplog.at_level("WARNING", "eligo"):
        assert main(args) == 0
    first, second = [line for line in caplog.messages if "manager_settings" in line]
    assert "available_gpus" in first
    assert "accelerate launch --num_processes 2 -m eligo tokens train design.yaml" in first
    assert "gpus_per_subtask" in second
    assert "`eligo search design.yaml` runs the search" in second


def test_epochs_over_files_are_counted_in_a_search(tmp_path):
    image = tmp_path / "image.png"
    Image.new("RGB", (56, 56)).save(image)
    row = {"image": str(image), "question": "is there any red ball?", "answers": ["yes"]}
    (tmp_path / "lines.jsonl").write_text(5 * (json.dumps(row) + "\n"))
    lines = str(tmp_path / "lines.jsonl")
    data = {"kind": "jsonl", "train_lines": lines, "validation_lines": lines, "validation": 2}
    changes = {"data": data, "epochs": 2, "train.batch_size": 2}
    task = TokensTrainConfig().tiny().replace(changes).build()
    assert task.config.train.total_steps == 5


def test_keys_without_effect_are_reported(caplog):
    config = (
        TokensTrainConfig()
        .smoke()
        .replace({"data.max_vision_tokens": 1200, "data.image_max_size": 800})
    )
    TokensTask(config)
    assert "data.max_vision_tokens has no effect: LLaVA has a fixed number" in caplog.text
    assert "data.image_max_size has no effect" in caplog.text
