"""What a family gives to the loop: a `Task`."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.config import Config
from eligo.train.check import DataCheck
from eligo.train.config import AnnealConfig, OptimizerConfig


@dataclass(frozen=True)
class Progress:
    """Where the training stands: `step` counts from 0."""

    step: int
    total_steps: int

    @property
    def fraction(self) -> float:
        """Part of the training that is done, 0 to 1."""
        return self.step / self.total_steps

    def anneal(self, config: AnnealConfig) -> float:
        """Value of an annealed scalar now."""
        return config.at(self.fraction)


@dataclass
class StepOutput:
    """Losses (already weighted; the loop sums them) and metrics to log.

    `weight` is what the losses are means over, where parts of a batch may differ in it: answer
    tokens, say. Processes and accumulated parts are combined in proportion to it.
    """

    losses: dict[str, Float[Tensor, ""]]
    metrics: dict[str, Float[Tensor, ""] | float] = field(default_factory=dict)
    weight: Float[Tensor, ""] | float = 1.0


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser and the names of the modules it trains."""

    config: OptimizerConfig
    modules: tuple[str, ...]


class Task(ABC):
    """One training problem: its modules, its batches, its losses, its validation metrics."""

    modules: dict[str, nn.Module]
    """What is trained, by name; each is saved alone as `<name>.safetensors`."""
    optimizers: dict[str, OptimizerSpec]
    """Optimisers by name; together they train every parameter that requires a gradient."""
    config: Config | None = None
    """The whole config of the run, saved beside the checkpoints."""

    @abstractmethod
    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Any]:
        """Part `rank` of `world_size` equal parts of the batch of every step from `start_step` on.

        The batch of step n must be a pure function of (seed, n): that is what makes resuming
        exact. Gradient accumulation appears here as a larger `world_size`.
        """

    @abstractmethod
    def step(self, batch: Any, progress: Progress) -> StepOutput:
        """Losses of one part of a batch, under autocast, with the modules in training mode."""

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Metrics on the validation split (never the test split), without gradients, eval mode.

        Called in every process; the numbers of the first one count. A function of the modules and
        the step (`batches` says which is the first): a run killed here evaluates again.
        """

    def metric_names(self) -> Collection[str] | None:
        """What `evaluate` returns, known before the first step; None: it is seen when it does."""
        return None

    def check(self, check: DataCheck) -> None:  # noqa: B027 (optional)
        """Look at all data, of training and validation, before the first step.

        `check.each(label, items, look)` collects the InputErrors of `look`; what it finds wrong is
        raised as one error. Runs in every process, on the task's device.
        """

    def to(self, device: torch.device) -> None:
        """Move everything to the device; tasks with frozen parts of their own extend this."""
        for module in self.modules.values():
            module.to(device)

    def after_step(  # noqa: B027 (optional, not forgotten)
        self, progress: Progress, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """Hook after the optimisers' step; randomness here is the same in every process."""
