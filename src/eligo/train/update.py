"""From losses to new parameters: backward, reduction over processes, clipping, guarded step.

Processes are not wrapped in DistributedDataParallel. A task has several modules, reaches them
through any method, and may leave some unused in a step; a wrapper sees none of that. Instead the
gradients of all modules are summed over the processes in one flat tensor after the backward pass.
That forgoes overlapping the sum with the backward pass, which models of our size do not need.

A parameter that a step did not use has a zero gradient, in one process as in many.

Nothing here waits for the device. Whether a step is finite is decided on the device: the fused
AdamW takes what the gradients are to be divided by (`grad_scale`: here also means and clipping)
and whether to skip the update (`found_inf`), the contract by which torch's GradScaler drives it.
The host reads the counters only when it logs.
"""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.errors import ConfigError, EligoError
from eligo.train.config import TrainConfig
from eligo.train.groups import named_parameters, parameter_groups
from eligo.train.processes import Processes
from eligo.train.schedule import lr_factor
from eligo.train.task import OptimizerSpec, StepOutput, Task

_GROWTH_INTERVAL = 2000  # finite fp16 steps before the loss scale doubles
_COUNTERS = ("loss_scale", "good_steps", "streak", "worst_streak", "skipped")


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
        found = (getattr(module, "project_", None) for module in submodules)
        self.projections: list[Callable[[], object]] = [p for p in found if callable(p)]
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
        """Add one part's gradients; returns its detached total loss."""
        loss = torch.stack([value.float() for value in output.losses.values()]).sum()
        (loss * output.weight * self.loss_scale).backward()
        self.loss_sum += loss.detach() * output.weight
        self.weight_sum += output.weight
        return loss.detach()

    def step(self, step: int) -> dict[str, Float[Tensor, ""]]:
        """Step every optimiser unless loss or gradients are not finite; returns gradient norms."""
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
            # torch reads these two by name; the class does not declare them.
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
        # An fp16 overflow first lowers the loss scale; only at scale 1 is it the model's fault.
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
        """Steps skipped so far; raises if too many in a row were not finite (reads the device)."""
        if self.worst_streak.item() >= self.config.max_nonfinite:
            raise EligoError(
                f"loss or gradients were not finite in {int(self.worst_streak.item())} steps in a "
                f"row, up to step {step}; the weights are those before. Lower the learning rate, "
                "clip harder (train.clip_norm), or train with train.precision: no"
            )
        return int(self.skipped.item())

    def rates(self, step: int) -> dict[str, float]:
        """Learning rate of each optimiser at `step`, before what modules multiply it by."""
        return {
            name: spec.config.lr * lr_factor(spec.config.schedule, step, self.config.total_steps)
            for name, spec in self.specs.items()
        }

    def counters(self) -> dict[str, float]:
        """What a checkpoint keeps besides the tensors."""
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
        """Take back what `tensors` (by optimiser) and `counters` gave."""
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
    """Forget all moments, as if the optimiser had just been made."""
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
    found: dict[str, dict[str, nn.Parameter]] = {name: {} for name in task.optimizers}
    for parameter_name, parameter in named_parameters(task.modules).items():
        module = parameter_name.split(".")[0]
        if module not in owner:
            raise ConfigError(
                f"module {module!r} has parameters that require a gradient but no optimizer; "
                "name it in one, or freeze it"
            )
        found[owner[module]][parameter_name] = parameter
    for name, parameters in found.items():
        if not parameters:
            raise ConfigError(f"optimizer {name!r} has nothing to train: all is frozen")
    return found
