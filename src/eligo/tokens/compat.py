"""Configs written for the two-stage pruning design (docs/sources.md).

The sections `trainer_settings`, `method_settings`, `manager_settings` and `search_settings` are
translated key by key. A key of ours that a flag or an extending file sets wins; a file that sets
both keys to different values is an error. `mode: optuna` and `enable: true` ask for a search, which
`eligo search` runs; where they disagree, `enable` decides.
"""

from typing import Any

from eligo.config import Layer
from eligo.config.layers import KeyPath
from eligo.config.problems import did_you_mean
from eligo.errors import ConfigError

SECTIONS = ("trainer_settings", "method_settings", "manager_settings", "search_settings")

_KEYS: dict[str, str] = {
    "trainer_settings.dl_settings.epochs": "epochs",
    "trainer_settings.dl_settings.batch_size": "train.batch_size",
    "trainer_settings.dl_settings.optimizers.token_merger.lr": "optim.merger.lr",
    "trainer_settings.dl_settings.optimizers.layer_pruners.lr": "optim.pruners.lr",
    "trainer_settings.dl_settings.optimizers.discriminator.lr": "optim.discriminator.lr",
    "method_settings.merger_type": "merger.kind",
    "method_settings.merge_ratio": "merger.ratio",
    "method_settings.target_merge_tokens": "merger.budget",
    "method_settings.pruning_layers": "pruners.layers",
    "method_settings.pruner_d_internal": "pruners.dim",
    "method_settings.pruner_num_heads": "pruners.num_heads",
    "method_settings.pruner_type": "pruners.kind",
    "method_settings.temperature": "temperature.start",
    "method_settings.temperature_min": "temperature.end",
    "method_settings.temperature_anneal_rate": "temperature.anneal_fraction",
    "method_settings.adv_loss_weight": "losses.adversarial",
    "method_settings.task_loss_weight": "losses.task",
    "method_settings.merge_sparsity_weight": "losses.sparsity",
    "method_settings.disc_reinit_prob": "discriminator.reinit_prob",
    "method_settings.max_vision_tokens": "data.max_vision_tokens",
    "method_settings.image_max_size": "data.image_max_size",
    "manager_settings.available_gpus": "search.gpus",
    "manager_settings.gpus_per_subtask": "search.gpus_per_worker",
    "search_settings.n_trials": "search.trials",
    "search_settings.enable": "search.enable",
    "manager_settings.mode": "search.enable",  # see `_asks_for_search`
}
_MODE, _ENABLE = ("manager_settings", "mode"), ("search_settings", "enable")
_ONE_RUN = ("single", "single_run", "train", "training", "normal", "default", "none")
_SPACE = {
    "optim.merger.lr": {"low": 1e-5, "high": 1e-3, "log": True},
    "optim.pruners.lr": {"low": 1e-5, "high": 1e-3, "log": True},
    "losses.task": {"low": 1.0, "high": 50.0, "log": True},
}


def from_two_stage_design(layer: Layer) -> Layer:
    """Return the layer with the sections of that design, if any, translated to our keys."""
    sections = {section: layer.tree[section] for section in SECTIONS if section in layer.tree}
    if not sections:
        return layer
    tree = {key: value for key, value in layer.tree.items() if key not in SECTIONS}
    origins = dict(layer.origins)
    leaves = dict(_leaves(sections, ()))
    for path, value in leaves.items():
        name = ".".join(path)
        if name not in _KEYS:
            raise ConfigError(f"{layer.where(path)}unknown key{_suggestion(path)}")
        if path == _MODE:
            value = _asks_for_search(value, layer)
            if _ENABLE in leaves:
                if value != leaves[_ENABLE]:  # reported as a key without effect
                    rank = layer.origins.get(path, (0, ""))[0]
                    origins[path] = (rank, layer.where(_ENABLE).removesuffix(": "))
                continue
        target = tuple(_KEYS[name].split("."))
        if _write(tree, target, value, layer, path):
            rank = layer.origins.get(path, (0, ""))[0]
            origins[target] = (rank, layer.where(path).removesuffix(": "))
    if "method_settings" in sections:
        tree.setdefault("objective", "adversarial")
    if isinstance(search := tree.get("search"), dict):
        search.setdefault("space", _SPACE)
    return Layer(tree, origins, layer.height)


def _suggestion(path: KeyPath) -> str:
    """Return `; did you mean X?`: a key of the same name in another section, or the nearest one."""
    same = (key for key in _KEYS if key.rpartition(".")[2] == path[-1])
    meant = next(same, None)
    return f"; did you mean {meant}?" if meant else did_you_mean(".".join(path), _KEYS)


def _asks_for_search(mode: Any, layer: Layer) -> bool:
    if mode == "optuna" or mode in _ONE_RUN:
        return mode == "optuna"
    raise ConfigError(
        f"{layer.where(_MODE)}got {mode!r:.80}, expected optuna (a search) or "
        f"{_ONE_RUN[0]} (one training){did_you_mean(str(mode), ['optuna', *_ONE_RUN])}"
    )


def _write(tree: dict[str, Any], target: KeyPath, value: Any, layer: Layer, path: KeyPath) -> bool:
    """Set our key, unless a higher layer set it already; return whether it was set."""
    for name in target[:-1]:
        inner = tree.get(name)
        tree[name] = dict(inner) if isinstance(inner, dict) else {}
        tree = tree[name]
    last = target[-1]
    if last in tree:
        ours, theirs = (layer.origins.get(key, (0, ""))[0] for key in (target, path))
        if ours > theirs:
            return False
        if ours == theirs and str(tree[last]) != str(value):
            raise ConfigError(
                f"{layer.where(path)}is {value!r}, but {'.'.join(target)} is {tree[last]!r}; "
                "keep one"
            )
    tree[last] = value
    return True


def _leaves(tree: Any, path: KeyPath) -> list[tuple[KeyPath, Any]]:
    if ".".join(path) in _KEYS or not isinstance(tree, dict):
        return [(path, tree)]
    return [leaf for key, value in tree.items() for leaf in _leaves(value, (*path, str(key)))]
