"""Batches whose order is a pure function of (seed, step), so that training can start anywhere."""

import logging
import os
import re
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

from eligo.errors import ConfigError, EligoError, InputError
from eligo.train.config import TrainConfig
from eligo.train.rng import mix, seed_everything

_MAX_WORKERS = 16
_PER_WORKER = 16  # examples read once; starting a worker takes as long as reading a few
_WAS_KILLED = (
    "a worker process that reads files was killed, perhaps because memory or shared memory "
    "(/dev/shm) ran out; give a lower data.num_workers, 0 for none"
)
_KILLED = re.compile(r"DataLoader worker \(pid")
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
    num_workers: int | None = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
    pin_memory: bool = False,
) -> Iterator[Any]:
    """Endless shuffled epochs over a map-style dataset: part `rank` of each batch of `batch_size`.

    The whole batch does not depend on `world_size`. Every epoch has its own permutation; an
    incomplete last batch is dropped. Before an example is fetched, Python, NumPy and torch are
    seeded from its position in the run, so augmentations repeat too, with any `num_workers`
    (`worker_count`). Workers run until the iterator is closed.
    """
    steps_per_epoch(len(dataset), batch_size)  # raises if there are too few examples
    if batch_size % world_size:
        raise ConfigError(f"batch size {batch_size} is not a multiple of {world_size} parts")
    loader = DataLoader(
        _Seeded(dataset, seed),  # pyright: ignore[reportArgumentType]
        batch_sampler=_Positions(len(dataset), batch_size, seed, start_step, rank, world_size),
        num_workers=worker_count(num_workers, world_size),
        collate_fn=partial(_collate, collate),
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        # The loader would otherwise draw a seed from the global generator.
        generator=torch.Generator().manual_seed(seed),
    )
    return _raise_problems(loader)


def ordered_batches(
    dataset: Examples,
    batch_size: int | None,
    *,
    num_workers: int | None = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
) -> Iterator[Any]:
    """Every example once, in order, `batch_size` at a time; None: one by one, not collated.

    By default fewer workers read a small dataset, and none a very small one.

    >>> [batch.tolist() for batch in ordered_batches(range(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    num_batches = -(-len(dataset) // (batch_size or 1))
    workers = min(worker_count(num_workers), num_batches) if num_batches > 1 else 0
    if num_workers is None:
        workers = min(workers, len(dataset) // _PER_WORKER)
    loader = DataLoader(
        _Read(dataset),  # pyright: ignore[reportArgumentType]
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=partial(_collate, collate) if batch_size else _as_it_is,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),
    )
    return _raise_problems(loader)


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


def worker_count(num_workers: int | None, num_parts: int = 1) -> int:
    """Worker processes of one loader of files: `num_workers` for each process of the run.

    None: `default_workers`. The parts of a batch that one process accumulates have a loader each
    and share its workers, at least one each; `num_parts` counts the parts of all processes.
    """
    workers = default_workers() if num_workers is None else num_workers
    loaders = max(1, num_parts // int(os.environ.get("WORLD_SIZE", "1")))
    return -(-workers // loaders)


def default_workers() -> int:
    """Number of worker processes for reading files: one per core but one, at most 16.

    Processes of one run on one machine share its cores. On one or two cores without a GPU there
    are none: they would compete with the training itself.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = (cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if share <= 2:
        return int(torch.cuda.is_available())
    return min(_MAX_WORKERS, share - 1)


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


def _start_worker(_: int) -> None:
    """In a worker: Ctrl-C goes to the whole process group, but the loop ends the run.

    torch has one thread in a worker; tokenizers would have as many as there are cores, and warn
    because they were used before the fork.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


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


def _as_it_is(example: Any) -> Any:
    return example


def _raise_problems(loader: DataLoader) -> Iterator[Any]:
    try:
        for batch in loader:
            if isinstance(batch, _Problem):
                raise InputError(str(batch))
            yield batch
    except RuntimeError as error:
        if (killed := killed_worker(error)) is not None:
            raise killed from error
        raise
    except (ConnectionError, EOFError) as error:  # killed while it sent a batch
        raise EligoError(_WAS_KILLED) from error


def killed_worker(error: BaseException) -> EligoError | None:
    """Return the error to show for torch's error on a killed worker, which comes at any time."""
    if not isinstance(error, RuntimeError) or not _KILLED.match(str(error)):
        return None
    return EligoError(_WAS_KILLED)


class _Read:
    """A dataset whose InputErrors are data."""

    def __init__(self, dataset: Examples) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except InputError as error:
            return _Problem(error)

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        many = getattr(self.dataset, "__getitems__", None)  # some read several at once faster
        if many is None:
            return [self[index] for index in indices]
        try:
            return many(indices)
        except InputError as error:
            return [_Problem(error)]


class _Seeded(_Read):
    """The same, seeded from the position of each example in the run."""

    def __init__(self, dataset: Examples, seed: int) -> None:
        super().__init__(dataset)
        self.seed = seed

    def __getitem__(self, index: tuple[int, int]) -> Any:
        position, index_in_data = index
        seed_everything(self.seed, position)
        return super().__getitem__(index_in_data)

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [self[index] for index in indices]  # each after its own seed
