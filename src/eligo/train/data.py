"""Batches whose order is a pure function of (seed, step), so that training can start anywhere."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from eligo.errors import ConfigError, InputError
from eligo.train.config import TrainConfig
from eligo.train.rng import mix, seed_everything

_log = logging.getLogger("eligo.train")


@runtime_checkable
class Examples(Protocol):
    """A map-style dataset: anything with a length and an index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def epoch_batches(
    dataset: Examples,
    batch_size: int,
    seed: int,
    start_step: int,
    rank: int,
    world_size: int,
    *,
    num_workers: int = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
    pin_memory: bool = False,
) -> Iterator[Any]:
    """Endless shuffled epochs over a map-style dataset: part `rank` of each batch of `batch_size`.

    The whole batch does not depend on `world_size`. Every epoch has its own permutation; an
    incomplete last batch is dropped. Before an example is fetched, Python, NumPy and torch are
    seeded from its position in the run, so augmentations repeat too, with any `num_workers`
    (per part).
    """
    steps_per_epoch(len(dataset), batch_size)  # raises if there are too few examples
    if batch_size % world_size:
        raise ConfigError(f"batch size {batch_size} is not a multiple of {world_size} parts")
    loader = DataLoader(
        _Seeded(dataset, seed),  # pyright: ignore[reportArgumentType]
        batch_sampler=_Positions(len(dataset), batch_size, seed, start_step, rank, world_size),
        num_workers=num_workers,
        collate_fn=partial(_collate, collate),
        pin_memory=pin_memory,
        worker_init_fn=_ignore_signals,
        # The loader would otherwise draw a seed from the global generator.
        generator=torch.Generator().manual_seed(seed),
    )
    return _raise_problems(iter(loader))


def epoch_rows(
    num_examples: int, batch_size: int, seed: int, start_step: int, device: torch.device
) -> Iterator[tuple[int, Int64[Tensor, " batch"]]]:
    """The same for a data set in device memory: every step with the row numbers of its batch."""
    per_epoch = steps_per_epoch(num_examples, batch_size)
    epoch, order = -1, torch.empty(0)
    for step in count(start_step):
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            random = torch.Generator().manual_seed(mix(seed, epoch))
            order = torch.randperm(num_examples, generator=random).to(device)
        first = step % per_epoch * batch_size
        yield step, order[first : first + batch_size]


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Number of complete batches in one pass over the examples."""
    if num_examples < batch_size:
        raise ConfigError(
            f"train.batch_size: got {batch_size}, expected at most {num_examples}, the number of "
            "training examples"
        )
    return num_examples // batch_size


def counted_steps(epochs: int, num_examples: int, train: TrainConfig) -> int:
    """Number of steps in so many epochs; warns if `train.total_steps` differs."""
    steps = epochs * steps_per_epoch(num_examples, train.batch_size)
    if train.total_steps not in (TrainConfig.model_fields["total_steps"].default, steps):
        _log.warning(
            "train.total_steps %d is ignored: epochs %d are %d steps; use --epochs None to set "
            "the steps", train.total_steps, epochs, steps,
        )  # fmt: skip
    return steps


def default_workers() -> int:
    """Number of worker processes for reading files: one per usable core, at most 16, or none.

    On one or two cores a worker would compete with the training itself.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if (cores or 1) <= 2 else min(16, (cores or 1) - 1)


class _Positions:
    """Endless batches of (position in the run, index in the dataset)."""

    def __init__(
        self, length: int, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> None:
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.start_step, self.rank, self.world_size = start_step, rank, world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        per_epoch = steps_per_epoch(self.length, self.batch_size)
        share = self.batch_size // self.world_size
        step, epoch, order = self.start_step, -1, np.empty(0, dtype=np.int64)
        while True:
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = np.random.default_rng(mix(self.seed, epoch)).permutation(self.length)
            first = step % per_epoch * self.batch_size + self.rank * share
            position = step * self.batch_size + self.rank * share
            yield [(position + i, int(order[first + i])) for i in range(share)]
            step += 1


def _ignore_signals(_: int) -> None:
    """In a worker: Ctrl-C goes to the whole process group, but the loop ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


class _Problem(str):
    """An InputError in a worker, as data: torch would wrap an exception in two tracebacks."""

    __slots__ = ()


def _collate(collate: Callable[[list[Any]], Any], examples: list[Any]) -> Any:
    for example in examples:
        if isinstance(example, _Problem):
            return example
    try:
        return collate(examples)
    except InputError as error:
        return _Problem(error)


def _raise_problems(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch, _Problem):
            raise InputError(str(batch))
        yield batch


class _Seeded:
    def __init__(self, dataset: Examples, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __getitem__(self, position_and_index: tuple[int, int]) -> Any:
        position, index = position_and_index
        seed_everything(self.seed, position)
        try:
            return self.dataset[index]
        except InputError as error:
            return _Problem(error)

    def __len__(self) -> int:
        return len(self.dataset)
