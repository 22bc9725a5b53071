"""Training configs, including keys of the two-stage pruning design, and the shipped YAMLs."""

import pytest

from eligo.cli.registry import load_run_config
from eligo.cli.search import _read
from eligo.config import load_config, shipped_configs
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
        "task": 50.0, "kl": 0.0, "hidden": 0.0, "adversarial": 0.5, "sparsity": 5e-4
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


def test_keys_without_effect_are_reported(caplog):
    config = (
        TokensTrainConfig()
        .smoke()
        .replace({"data.max_vision_tokens": 1200, "data.image_max_size": 800})
    )
    TokensTask(config)
    assert "data.max_vision_tokens has no effect: LLaVA has a fixed number" in caplog.text
    assert "data.image_max_size has no effect" in caplog.text
