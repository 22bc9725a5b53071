"""Which parameters get weight decay, and which learning rate: modules declare it themselves.

A module (class or instance) may carry
- `no_weight_decay: tuple[str, ...]`: own parameters or submodules that are never decayed;
- `lr_multiplier: dict[str, float]`: own parameters or submodules with another learning rate.
Names are dotted and relative to the module that declares them. Parameters with fewer than two
dimensions (biases, norms, scales) are never decayed.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from eligo.train.config import OptimizerConfig


def named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, as `<module>.<parameter>`; tied ones once."""
    seen: set[nn.Parameter] = set()
    found: dict[str, nn.Parameter] = {}
    for name, module in modules.items():
        for path, parameter in module.named_parameters(prefix=name):
            if parameter.requires_grad and parameter not in seen:
                found[path] = parameter
                seen.add(parameter)
    return found


def parameter_groups(
    modules: Mapping[str, nn.Module], config: OptimizerConfig
) -> list[dict[str, Any]]:
    """Groups for AdamW; `peak_lr` is what the schedule multiplies."""
    undecayed = [rule for rule, _ in _declared(modules, "no_weight_decay")]
    multipliers = list(_declared(modules, "lr_multiplier"))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_parameters(modules).items():
        decays = parameter.ndim > 1 and not any(_covers(rule, name) for rule in undecayed)
        lr = config.lr
        for rule, multiplier in multipliers:
            lr *= multiplier if _covers(rule, name) else 1.0
        groups.setdefault((lr, config.weight_decay if decays else 0.0), []).append(parameter)
    return [
        {"params": parameters, "lr": lr, "peak_lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in groups.items()
    ]


def _declared(modules: Mapping[str, nn.Module], attribute: str) -> Iterator[tuple[str, float]]:
    named = (root.named_modules(prefix=name) for name, root in modules.items())
    for path, module in chain.from_iterable(named):
        rules = getattr(module, attribute, ())
        # Foreign models may use the same word for something else (timm: a method).
        if not isinstance(rules, tuple | dict):
            continue
        for rule in rules:
            attrgetter(rule)(module)  # a misspelt name fails here
            yield f"{path}.{rule}", rules[rule] if isinstance(rules, dict) else 0.0


def _covers(rule: str, name: str) -> bool:
    return name == rule or name.startswith(rule + ".")
