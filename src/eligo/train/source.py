"""Where a family's batches come from, and the task that reads them from there."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch

from eligo.train.check import DataCheck
from eligo.train.config import TrainConfig
from eligo.train.task import Task


class Source(ABC):
    """Training batches without end; families add the images that they measure on."""

    def check(self, check: DataCheck) -> None:  # noqa: B027 (optional)
        """Look at all data, of training and validation; see `Task.check`."""

    @abstractmethod
    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Any]:
        """Part `rank` of every step's batch from `start_step` on: a function of (seed, step)."""


SourceT = TypeVar("SourceT", bound=Source)


class SourcedTask(Task, Generic[SourceT]):
    """A task that learns from a `Source`: a given one, or one opened when the device is known."""

    def __init__(self, settings: TrainConfig, source: SourceT | None) -> None:
        self._settings, self._source = settings, source

    @property
    def source(self) -> SourceT:
        """Where the batches come from."""
        if self._source is None:
            self._source = self.open_source()
        return self._source

    @abstractmethod
    def open_source(self) -> SourceT:
        """The source that the config describes, on the device of the modules."""

    def check(self, check: DataCheck) -> None:
        """The source's data."""
        self.source.check(check)

    def batches(
        self,
        start_step: int,
        rank: int,
        world_size: int,
        device: torch.device,  # noqa: ARG002 (the source's)
    ) -> Iterator[Any]:
        """This process's share of the batch of every step."""
        size, seed = self._settings.batch_size, self._settings.seed
        return self.source.batches(size, seed, start_step, rank, world_size)
