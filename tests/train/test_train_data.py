"""Batches: order, splitting over processes, resuming at any step."""

import random
from itertools import islice

import numpy as np
import pytest
import torch

from eligo.errors import ConfigError, InputError
from eligo.train import (
    TrainConfig,
    counted_steps,
    epoch_batches,
    epoch_rows,
    steps_per_epoch,
)


class Augmented:
    """Every example with a number from each generator."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = [random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor([index, *draws], dtype=torch.float64)


def take(count: int, *, start: int = 0, rank: int = 0, world: int = 1, workers: int = 0):
    batches = epoch_batches(Augmented(), 6, 5, start, rank, world, num_workers=workers)
    return torch.stack(list(islice(batches, count)))


def test_batch_stream_can_start_at_any_step() -> None:
    assert torch.equal(take(8)[5:], take(3, start=5))


def test_parts_of_all_ranks_form_the_same_batch() -> None:
    parts = [take(5, rank=rank, world=3) for rank in range(3)]
    assert torch.equal(take(5), torch.cat(parts, dim=1))


def test_workers_reproduce_the_augmentations() -> None:
    assert torch.equal(take(5), take(5, workers=1))


def test_epochs_are_different_permutations() -> None:
    indices = take(6)[..., 0]
    first, second = indices[:3].flatten().tolist(), indices[3:].flatten().tolist()
    assert len(set(first)) == 18
    assert first != second


def test_invalid_batch_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size: got 32, expected at most 22"):
        epoch_batches(Augmented(), 32, 0, 0, 0, 1)
    with pytest.raises(ConfigError, match="multiple"):
        epoch_batches(Augmented(), 6, 0, 0, 0, 4)


def rows(count: int, start: int = 0, batch_size: int = 6) -> list[tuple[int, torch.Tensor]]:
    return list(islice(epoch_rows(22, batch_size, 5, start, torch.device("cpu")), count))


def test_device_rows_do_not_repeat_within_an_epoch() -> None:
    drawn = rows(7)
    assert [step for step, _ in drawn] == list(range(7))
    first, second = (torch.cat([row for _, row in drawn[i : i + 3]]) for i in (0, 3))
    assert len(first.unique()) == len(second.unique()) == 18
    assert int(first.max()) <= 21
    assert not torch.equal(first, second)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 5])
def test_row_stream_can_start_at_any_step(start: int) -> None:
    for (step, found), (again, repeated) in zip(
        rows(8)[start:], rows(8 - start, start), strict=True
    ):
        assert step == again
        assert torch.equal(found, repeated)


def test_epoch_counts_whole_batches() -> None:
    assert (steps_per_epoch(22, 6), steps_per_epoch(22, 22)) == (3, 1)
    with pytest.raises(ConfigError, match="batch_size: got 23, expected at most 22"):
        rows(1, batch_size=23)


class Torn(Augmented):
    """One example cannot be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            raise InputError("7.png: cannot be read as an image")
        return super().__getitem__(index)


def no_batch(_: list) -> None:
    raise InputError("images of several sizes")


@pytest.mark.parametrize("workers", [0, 1])
def test_every_worker_reports_invalid_data_equally(workers: int) -> None:
    with pytest.raises(InputError) as caught:
        list(islice(epoch_batches(Torn(), 6, 5, 0, 0, 1, num_workers=workers), 4))
    assert str(caught.value) == "7.png: cannot be read as an image"
    with pytest.raises(InputError) as caught:
        next(epoch_batches(Augmented(), 6, 5, 0, 0, 1, num_workers=workers, collate=no_batch))
    assert str(caught.value) == "images of several sizes"


def test_total_steps_are_ignored_with_epochs(caplog: pytest.LogCaptureFixture):
    """A warning if both are given, none if only one is."""
    assert counted_steps(3, 10, TrainConfig(batch_size=4)) == 6
    assert counted_steps(3, 10, TrainConfig(batch_size=4, total_steps=6)) == 6
    assert not caplog.text
    assert counted_steps(3, 10, TrainConfig(batch_size=4, total_steps=2)) == 6
    assert "total_steps 2 is ignored: epochs 3 are 6 steps" in caplog.text
