"""Learning rates, parameter groups, and the step from losses to new parameters.

Schedules are functions of the step, so there is nothing to save. A module (class or instance) may
declare, with dotted names relative to itself,
- `no_weight_decay: tuple[str, ...]`: parameters or submodules without weight decay;
- `lr_multiplier: dict[str, float]`: parameters or submodules with another learning rate.
Parameters with fewer than two dimensions (biases, norms, scales) are never decayed.

There is no DistributedDataParallel: a task has several modules, calls any of their methods, and may
leave some unused in a step. Instead the gradients of all modules are summed over the processes in
one flat tensor after the backward pass; unused parameters have a zero gradient.

Nothing here waits for the device: the fused AdamW takes the divisor of the gradients (`grad_scale`,
here with mean and clipping) and whether to skip the update (`found_inf`) as tensors, as torch's
GradScaler does. The host reads the counters only when it logs.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.errors import ConfigError, EligoError
from eligo.train.config import OptimizerConfig, ScheduleConfig, TrainConfig
from eligo.train.processes import Processes
from eligo.train.task import OptimizerSpec, StepOutput, Task
from eligo.train.weights import named_parameters

_GROWTH_INTERVAL = 2000  # finite fp16 steps before the loss scale doubles
_COUNTERS = ("loss_scale", "good_steps", "streak", "worst_streak", "skipped")


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """Return the factor on the peak learning rate in `step`, counted from 0.

    With warm-up length w: (step+1)/w, then a continuous decay over p = (step-w)/(total-w).
    Milestones are fractions of all steps. `legacy_poly` is DFormer's original: step/w, then
    (1 - step/total)^power, which jumps at step w.
    """
    warmup = round(schedule.warmup * (total_steps if schedule.warmup < 1 else 1))
    if schedule.kind == "legacy_poly":
        if step < warmup:
            return step / warmup
        return max(0.0, 1 - step / total_steps) ** schedule.power
    if step < warmup:
        return (step + 1) / warmup
    part = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    match schedule.kind:
        case "constant":
            return 1.0
        case "linear":
            return 1 - part * (1 - schedule.final_ratio)
        case "cosine":
            cosine = (1 + math.cos(math.pi * part)) / 2
            return schedule.final_ratio + (1 - schedule.final_ratio) * cosine
        case "poly":
            return (1 - part) ** schedule.power
        case "milestones":
            passed = sum(step >= milestone * total_steps for milestone in schedule.milestones)
            return schedule.gamma**passed


def parameter_groups(
    modules: Mapping[str, nn.Module], config: OptimizerConfig
) -> list[dict[str, Any]]:
    """Parameter groups for AdamW; the schedule multiplies `peak_lr`."""
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
        # Other libraries use the same name for something else (timm: a method).
        if not isinstance(rules, tuple | dict):
            continue
        for rule in rules:
            attrgetter(rule)(module)  # a misspelt name fails here
            yield f"{path}.{rule}", rules[rule] if isinstance(rules, dict) else 0.0


def _covers(rule: str, name: str) -> bool:
    return name == rule or name.startswith(rule + ".")


class Updater:
    """The optimisers of a task, stepped together."""

    def __init__(self, task: Task, config: TrainConfig, processes: Processes) -> None:
        self.config, self.processes = config, processes
        self.specs = task.optimizers
        self.parameters = _parameters_by_optimizer(task)
        self.optimizers = {
            name: _build(spec, task.modules) for name, spec in task.optimizers.items()
        }
        submodules = (module for root in task.modules.values() for module in root.modules())
        methods = (getattr(module, "project_", None) for module in submodules)
        self.projections: list[Callable[[], object]] = [m for m in methods if callable(m)]
        device = processes.device
        self.loss_scale = torch.full(
            (), 65536.0 if config.precision == "fp16" else 1.0, device=device
        )
        self.good_steps, self.streak, self.worst_streak, self.skipped = (
            torch.zeros((), device=device) for _ in range(4)
        )
        self._start()

    def _start(self) -> None:
        self.loss_sum = torch.zeros((), device=self.processes.device)
        self.weight_sum = torch.zeros((), device=self.processes.device)

    def backward(self, output: StepOutput) -> Float[Tensor, ""]:
        """Add one part's gradients and return its detached total loss."""
        loss = torch.stack([value.float() for value in output.losses.values()]).sum()
        (loss * output.weight * self.loss_scale).backward()
        self.loss_sum += loss.detach() * output.weight
        self.weight_sum += output.weight
        return loss.detach()

    def step(self, step: int) -> dict[str, Float[Tensor, ""]]:
        """Step every optimiser if loss and gradients are finite; return the gradient norms."""
        self._reduce()
        divisor = self.weight_sum * self.loss_scale
        norms: dict[str, Tensor] = {}
        for name, parameters in self.parameters.items():
            gradients = [p.grad for p in parameters.values() if p.grad is not None]
            norms[name] = torch.nn.utils.get_total_norm(gradients) / divisor
        finite = torch.stack([self.loss_sum, *norms.values()]).isfinite().all()
        for name, optimizer in self.optimizers.items():
            schedule = self.specs[name].config.schedule
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr_factor(schedule, step, self.config.total_steps)
            clip = self.config.clip_norm or math.inf
            factor = (clip / (norms[name] + 1e-6)).clamp(max=1.0)
            # Attributes that torch reads but AdamW does not declare.
            setattr(optimizer, "found_inf", (~finite).float())  # noqa: B010
            setattr(optimizer, "grad_scale", divisor / factor)  # noqa: B010
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for project_ in self.projections:
                project_()
        self._count(finite)
        self._start()
        return norms

    def _reduce(self) -> None:
        parameters = [p for group in self.parameters.values() for p in group.values()]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.processes.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        extra = torch.stack([self.loss_sum, self.weight_sum])
        flat = torch.cat([*(gradient.float().reshape(-1) for gradient in gradients), extra])
        *parts, extra = self.processes.sum_(flat).split(
            [gradient.numel() for gradient in gradients] + [2]
        )
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        self.loss_sum, self.weight_sum = extra.unbind()

    def _count(self, finite: Tensor) -> None:
        # An fp16 overflow first lowers the loss scale; it counts as bad only at scale 1.
        bad = ~finite & (self.loss_scale <= 1)
        self.streak = torch.where(bad, self.streak + 1, 0)
        self.worst_streak = torch.maximum(self.worst_streak, self.streak)
        self.skipped = self.skipped + (~finite).float()
        if self.config.precision != "fp16":
            return
        self.good_steps = torch.where(finite, self.good_steps + 1, 0)
        grows = self.good_steps >= _GROWTH_INTERVAL
        factor = torch.where(finite, torch.where(grows, 2.0, 1.0), 0.5)
        self.loss_scale = (self.loss_scale * factor).clamp(min=1.0)
        self.good_steps = torch.where(grows, 0, self.good_steps)

    def check(self, step: int) -> int:
        """Return the number of skipped steps; raise after too many in a row (device sync)."""
        if self.worst_streak.item() >= self.config.max_nonfinite:
            raise EligoError(
                f"loss or gradients were not finite in {int(self.worst_streak.item())} steps in a "
                f"row, up to step {step}; the weights are those before. Lower the learning rate, "
                "clip harder (train.clip_norm), or train with train.precision: no"
            )
        return int(self.skipped.item())

    def rates(self, step: int) -> dict[str, float]:
        """Learning rate of each optimiser at `step`, without the modules' multipliers."""
        return {
            name: spec.config.lr * lr_factor(spec.config.schedule, step, self.config.total_steps)
            for name, spec in self.specs.items()
        }

    def counters(self) -> dict[str, float]:
        """Counters for a checkpoint."""
        return {name: getattr(self, name).item() for name in _COUNTERS}

    def tensors(self, name: str) -> dict[str, Tensor]:
        """State of one optimiser as flat named tensors."""
        state = self.optimizers[name].state
        return {
            f"{parameter_name}.{key}": value
            for parameter_name, parameter in self.parameters[name].items()
            for key, value in state[parameter].items()
        }

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], counters: dict[str, float]) -> None:
        """Restore what `tensors` (by optimiser) and `counters` returned."""
        for name, value in counters.items():
            setattr(self, name, torch.full((), value, device=self.processes.device))
        for name, parameters in self.parameters.items():
            expected = {
                f"{parameter}.{key}"
                for parameter in parameters
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
            if differing := expected.symmetric_difference(tensors[name]):
                raise EligoError(
                    f"optimiser state of {name!r} does not fit the parameters: "
                    f"{', '.join(sorted(differing)[:8])}"
                )
            for parameter_name, parameter in parameters.items():
                self.optimizers[name].state[parameter] = {
                    key: tensors[name][f"{parameter_name}.{key}"].to(parameter.device)
                    for key in ("step", "exp_avg", "exp_avg_sq")
                }


def reset_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Reset all moments of an optimiser."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def _build(spec: OptimizerSpec, modules: Mapping[str, nn.Module]) -> torch.optim.AdamW:
    groups = parameter_groups({name: modules[name] for name in spec.modules}, spec.config)
    return torch.optim.AdamW(groups, betas=spec.config.betas, eps=spec.config.eps, fused=True)


def _parameters_by_optimizer(task: Task) -> dict[str, dict[str, nn.Parameter]]:
    owner: dict[str, str] = {}
    for name, spec in task.optimizers.items():
        for module in spec.modules:
            if module not in task.modules or module in owner:
                raise ConfigError(
                    f"optimizer {name!r} trains module {module!r}, which is "
                    + (f"trained by {owner[module]!r} too" if module in owner else "unknown")
                    + f"; the task's modules are {', '.join(task.modules)}"
                )
            owner[module] = name
    groups: dict[str, dict[str, nn.Parameter]] = {name: {} for name in task.optimizers}
    for parameter_name, parameter in named_parameters(task.modules).items():
        module = parameter_name.split(".")[0]
        if module not in owner:
            raise ConfigError(
                f"module {module!r} has parameters that require a gradient but no optimizer; "
                "name it in one, or freeze it"
            )
        groups[owner[module]][parameter_name] = parameter
    for name, parameters in groups.items():
        if not parameters:
            raise ConfigError(
                f"optimizer {name!r} has nothing to train: all its parameters are frozen"
            )
    return groups
