import random
from itertools import islice

import numpy as np
import pytest
import torch

from eligo.errors import ConfigError, InputError
from eligo.train import epoch_batches


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


def test_any_step_can_be_the_first() -> None:
    assert torch.equal(take(8)[5:], take(3, start=5))


def test_parts_make_up_the_same_batch() -> None:
    parts = [take(5, rank=rank, world=3) for rank in range(3)]
    assert torch.equal(take(5), torch.cat(parts, dim=1))


def test_workers_repeat_the_augmentations() -> None:
    assert torch.equal(take(5), take(5, workers=1))


def test_an_epoch_repeats_nothing_and_the_next_is_another() -> None:
    indices = take(6)[..., 0]
    first, second = indices[:3].flatten().tolist(), indices[3:].flatten().tolist()
    assert len(set(first)) == 18
    assert first != second


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(InputError, match="22 examples"):
        epoch_batches(Augmented(), 32, 0, 0, 0, 1)
    with pytest.raises(ConfigError, match="multiple"):
        epoch_batches(Augmented(), 6, 0, 0, 0, 4)
