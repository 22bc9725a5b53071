"""A training problem for the loop: `Task`, and `SourcedTask` for one with a data source."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.config import Config
from eligo.train.check import DataCheck
from eligo.train.config import AnnealConfig, OptimizerConfig, TrainConfig


@dataclass(frozen=True)
class Progress:
    """The current step, counted from 0, of all steps."""

    step: int
    total_steps: int

    @property
    def fraction(self) -> float:
        """Completed part of the training, 0 to 1."""
        return self.step / self.total_steps

    def anneal(self, config: AnnealConfig) -> float:
        """Current value of an annealed scalar."""
        return config.at(self.fraction)


@dataclass
class StepOutput:
    """Losses (already weighted; the loop sums them) and metrics to log.

    `weight` is the number of items that the losses are means over (answer tokens, for example).
    Processes and accumulated parts are combined in proportion to it.
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
    """Trained modules by name; each is saved as `<name>.safetensors`."""
    optimizers: dict[str, OptimizerSpec]
    """Optimisers by name; together they train every parameter that requires a gradient."""
    config: Config | None = None
    """The whole config of the run, saved beside the checkpoints."""

    @abstractmethod
    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Any]:
        """Yield part `rank` of `world_size` of the batch of every step from `start_step` on.

        The batch of step n must be a pure function of (seed, n), so that resuming is exact.
        Gradient accumulation appears here as a larger `world_size`.
        """

    @abstractmethod
    def step(self, batch: Any, progress: Progress) -> StepOutput:
        """Return the losses of one part of a batch; under autocast, modules in training mode."""

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Return metrics on the validation split; without gradients, modules in eval mode.

        Called in every process; the metrics of the first one are used. They must be a function of
        the modules and the step: a run that is killed here evaluates again.
        """

    def metric_names(self) -> Collection[str] | None:
        """Names of the metrics that `evaluate` returns; None if not known before the first step."""
        return None

    def check(self, check: DataCheck) -> None:  # noqa: B027 (optional)
        """Check all training and validation data before the first step.

        `check.each(label, items, function)` collects the InputErrors of the function, which are
        raised as one error. Runs in every process, on the task's device.
        """

    def to(self, device: torch.device) -> None:
        """Move everything to the device; tasks with frozen parts of their own extend this."""
        for module in self.modules.values():
            module.to(device)

    def after_step(  # noqa: B027 (optional)
        self, progress: Progress, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """Hook after the optimisers' step; random numbers here are the same in every process."""


class Source(ABC):
    """An endless source of training batches."""

    def check(self, check: DataCheck) -> None:  # noqa: B027 (optional)
        """Check all data, of training and validation; see `Task.check`."""

    @abstractmethod
    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Any]:
        """Part `rank` of every step's batch from `start_step` on: a function of (seed, step)."""


SourceT = TypeVar("SourceT", bound=Source)


class SourcedTask(Task, Generic[SourceT]):
    """A task with a `Source`: a given one, or one opened when the device is known."""

    def __init__(self, settings: TrainConfig, source: SourceT | None) -> None:
        self._settings, self._source = settings, source

    @property
    def source(self) -> SourceT:
        """The source of the batches."""
        if self._source is None:
            self._source = self.open_source()
        return self._source

    @abstractmethod
    def open_source(self) -> SourceT:
        """Open the source that the config describes, on the device of the modules."""

    def check(self, check: DataCheck) -> None:
        """Check the source's data."""
        self.source.check(check)

    def batches(
        self,
        start_step: int,
        rank: int,
        world_size: int,
        device: torch.device,  # noqa: ARG002 (the source has its own)
    ) -> Iterator[Any]:
        """Yield this process's share of the batch of every step."""
        size, seed = self._settings.batch_size, self._settings.seed
        return self.source.batches(size, seed, start_step, rank, world_size)
