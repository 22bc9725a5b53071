"""Batches: order, splitting over processes, resuming at any step."""

import gc
import os
import random
import signal
from itertools import islice

import numpy as np
import pytest
import torch
from toy_task import toy

from eligo.errors import ConfigError, EligoError, InputError
from eligo.train import (
    TrainConfig,
    counted_steps,
    epoch_batches,
    epoch_rows,
    fit,
    steps_per_epoch,
)
from eligo.train import data as loading
from eligo.train.data import default_workers, killed_worker, ordered_batches, worker_count


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


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_reproduce_the_augmentations(workers: int) -> None:
    assert torch.equal(take(5), take(5, workers=workers))
    assert torch.equal(take(5)[2:], take(3, start=2, workers=workers))


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


# ------------------------------------------------------------------ worker processes


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch):
    """A function that sets the number of cores, whether there is a GPU, and the processes."""

    def given(count: int, *, gpu: bool = True, here: int = 1, everywhere: int | None = None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        monkeypatch.setenv("WORLD_SIZE", str(everywhere or here))

    return given


@pytest.mark.parametrize(
    ("count", "gpu", "expected"),
    [
        (1, True, 1), (2, True, 1), (4, True, 3), (16, True, 15), (64, True, 16),
        (1, False, 0), (2, False, 0), (4, False, 3), (64, False, 16),
    ],
)  # fmt: skip
def test_default_workers_leave_a_core_free(cores, count: int, gpu: bool, expected: int):
    cores(count, gpu=gpu)
    assert default_workers() == worker_count(None) == expected
    assert worker_count(0) == 0
    assert worker_count(5) == 5


def test_processes_of_a_machine_share_its_cores(cores):
    cores(16, here=4, everywhere=8)
    assert default_workers() == 3
    cores(16, here=8)
    assert default_workers() == 1


def test_accumulated_parts_share_the_workers_of_their_process(cores):
    cores(16)
    assert worker_count(None, num_parts=4) == 4  # 15, rounded up
    assert worker_count(3, num_parts=8) == 1
    assert worker_count(0, num_parts=8) == 0
    cores(16, here=2)
    assert worker_count(6, num_parts=4) == 3  # two parts in each of two processes


class Threads:
    """The number of torch threads and the tokenizers' setting, where an example is read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> tuple[int, str]:
        return torch.get_num_threads(), os.environ.get("TOKENIZERS_PARALLELISM", "")


def test_workers_start_no_thread_pools(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        own = next(epoch_batches(Threads(), 2, 0, 0, 0, 1))
        theirs = next(epoch_batches(Threads(), 2, 0, 0, 0, 1, num_workers=1))
        in_order = next(ordered_batches(Threads(), 2, num_workers=1))
    finally:
        torch.set_num_threads(before)
    assert own[0].tolist() == [2, 2]
    assert theirs[0].tolist() == in_order[0].tolist() == [1, 1]
    assert list(theirs[1]) == list(in_order[1]) == ["false", "false"]
    assert "TOKENIZERS_PARALLELISM" not in os.environ


class Killed(Augmented):
    """The worker that reads an example is killed, as by the kernel when memory runs out."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None and index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_killed_worker_is_one_line():
    with pytest.raises(EligoError, match=r"a worker process .* lower data\.num_workers") as caught:
        list(islice(epoch_batches(Killed(), 6, 5, 0, 0, 1, num_workers=1), 4))
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()  # of the loader: while it lives, torch raises that error again


def test_other_errors_of_workers_are_left_alone():
    assert killed_worker(ValueError("DataLoader worker (pid 7) is killed")) is None
    assert killed_worker(RuntimeError("Caught RuntimeError in DataLoader worker process 0")) is None


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ordered_batches_have_every_example_once(workers: int):
    batches = list(ordered_batches(range(10), 4, num_workers=workers))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    singly = list(ordered_batches(range(5), None, num_workers=workers))
    assert singly == [0, 1, 2, 3, 4]
    with pytest.raises(InputError) as caught:
        list(ordered_batches(Torn(), 6, num_workers=workers))
    assert str(caught.value) == "7.png: cannot be read as an image"


class Many:
    """A dataset that reads several examples at once."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError(f"example {index} is read alone")

    def __getitems__(self, indices: list[int]) -> list[int]:
        if 9 in indices:
            raise InputError("9.png: cannot be read as an image")
        return [100 * len(indices) + index for index in indices]


def test_ordered_batches_read_several_examples_at_once():
    batches = ordered_batches(Many(), 4)
    assert next(batches).tolist() == [400, 401, 402, 403]
    assert next(batches).tolist() == [404, 405, 406, 407]
    with pytest.raises(InputError, match=r"9\.png"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_in_order_draws_no_random_numbers(workers: int):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    list(ordered_batches(range(10), 4, num_workers=workers))
    assert torch.equal(torch.rand(2), expected)


def test_small_sets_start_few_workers(monkeypatch: pytest.MonkeyPatch):
    """Not more than batches; by default, not more than pay off."""
    started = []
    original = loading.DataLoader

    def loader(*args, **options):
        started.append(options["num_workers"])
        return original(*args, **options)

    monkeypatch.setattr(loading, "DataLoader", loader)
    list(ordered_batches(range(10), 4, num_workers=8))
    list(ordered_batches(range(4), 4, num_workers=8))
    assert started == [3, 0]
    monkeypatch.setattr(loading, "default_workers", lambda: 2)
    list(ordered_batches(range(15), 1, num_workers=None))
    list(ordered_batches(range(17), 1, num_workers=None))
    list(ordered_batches(range(99), 1, num_workers=None))
    assert started[2:] == [0, 1, 2]


def test_worker_killed_during_a_step_is_one_line(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """torch raises its error in the main thread, wherever that is."""
    task = toy(tmp_path)

    def step(*_: object):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(task, "step", step)
    with pytest.raises(EligoError, match=r"a worker process .* was killed"):
        fit(task, task.config.train)
