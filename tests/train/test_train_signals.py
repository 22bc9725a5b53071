"""Ctrl-C and SIGTERM end a run with a checkpoint and one line; a second signal exits at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from in_two import stop_in_two
from test_train_loop import lines, run, weights
from toy_task import ToyTask, toy

from eligo.io.interrupts import Delayed, Interrupted, Launcher
from forks import run_in_two

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def plain_handlers() -> Iterator[None]:
    """As a program has them that runs in the foreground."""
    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def at(task: ToyTask, name: str, call: int, do: Callable[[], Any]) -> ToyTask:
    """The task, with something done inside the given call of a method."""
    original, calls = getattr(task, name), iter(range(1, 1000))

    def wrapped(*args: Any) -> Any:
        result = original(*args)
        if next(calls) == call:
            do()
        return result

    setattr(task, name, wrapped)
    return task


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", BOTH)
def test_signal_finishes_the_step_and_writes_a_checkpoint(tmp_path: Path, number: int) -> None:
    whole = toy(tmp_path, "whole")
    expected = run(whole)
    with pytest.raises(Interrupted) as caught:
        run(at(toy(tmp_path), "step", 7, send(number)))
    assert str(caught.value) == "stopped at step 7, which is saved; continue with --resume"
    assert caught.value.code == 128 + number
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    parts = toy(tmp_path)
    result = run(parts, resume=True)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)
    assert lines(result, "validation") == lines(expected, "validation")
    assert result.best == expected.best


def test_signal_in_an_evaluated_step_defers_the_evaluation(
    tmp_path: Path,
) -> None:
    expected = lines(run(toy(tmp_path, "whole")), "validation")
    with pytest.raises(Interrupted, match="stopped at step 4,"):
        run(at(toy(tmp_path), "step", 4, send(signal.SIGTERM)))
    assert lines(run(toy(tmp_path), resume=True), "validation") == expected


def test_signal_in_an_evaluation_stops_it_at_once(tmp_path: Path) -> None:
    expected = lines(run(toy(tmp_path, "whole")), "validation")
    with pytest.raises(Interrupted, match="stopped at step 8,"):
        run(at(toy(tmp_path), "evaluate", 2, send(signal.SIGINT)))
    assert lines(run(toy(tmp_path), resume=True), "validation") == expected


def test_second_signal_exits_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        send(signal.SIGINT)()
        send(signal.SIGINT)()
        raise AssertionError("is not reached")

    with pytest.raises(Interrupted, match="stopped at step 4,"):
        run(at(toy(tmp_path), "step", 6, twice))


def test_signal_that_a_library_turns_into_an_error(tmp_path: Path) -> None:
    def failing() -> None:
        send(signal.SIGTERM)()
        raise RuntimeError("a worker died")

    with pytest.raises(Interrupted, match="stopped at step 4,") as caught:
        run(at(toy(tmp_path), "step", 6, failing))
    assert caught.value.code == 143


def test_signal_before_the_first_checkpoint(tmp_path: Path) -> None:
    task = toy(tmp_path)
    task.check = lambda _: send(signal.SIGTERM)()
    with pytest.raises(Interrupted, match="before the first checkpoint; the same command"):
        run(task)
    assert run(toy(tmp_path)).last_step == 12


def test_signal_after_the_last_step_is_not_lost(tmp_path: Path) -> None:
    def stop(step: int, _: Any) -> bool:
        if step == 12:
            send(signal.SIGINT)()
        return False

    with pytest.raises(Interrupted, match="stopped at step 12,"):
        run(toy(tmp_path), on_evaluate=stop)
    assert (tmp_path / "run" / "best").exists()


def test_ignored_signals_and_custom_handlers_are_kept(tmp_path: Path) -> None:
    got = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))

    def both() -> None:
        for number in BOTH:
            send(number)()

    assert run(at(toy(tmp_path), "step", 3, both)).last_step == 12
    assert got == [signal.SIGTERM]


def test_other_threads_install_no_handlers(tmp_path: Path) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run(toy(tmp_path)).last_step))
    with Delayed() as outer:
        thread.start()
        thread.join()
        send(signal.SIGINT)()
    assert (found, outer.number) == ([12], signal.SIGINT)


def test_processes_stop_at_the_same_step(tmp_path: Path) -> None:
    """Only one of them gets the signal."""
    run_in_two(stop_in_two, tmp_path)
    assert (tmp_path / "run" / "last").resolve().name == "step_000012"
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert "143 stopped at step " in texts[0]


def test_data_workers_ignore_signals(tmp_path: Path) -> None:
    """A terminal and most schedulers signal the whole group of processes."""
    from eligo.train import epoch_batches

    examples = [(torch.zeros(8), torch.zeros(1))] * 64
    task = toy(tmp_path)
    task.batches = lambda step, rank, size, _: epoch_batches(
        examples, 16, 0, step, rank, size, num_workers=1
    )

    def to_all() -> None:
        import multiprocessing

        for child in multiprocessing.active_children():
            for number in BOTH:
                os.kill(child.pid or 0, number)
        send(signal.SIGTERM)()

    with pytest.raises(Interrupted, match="stopped at step 5,"):
        run(at(task, "step", 5, to_all))


def test_end_of_the_launcher_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch` passes no signal on to a single process."""
    real = os.getppid()
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"python\0bin/accelerate\0launch\0")
    task = at(toy(tmp_path), "step", 5, lambda: monkeypatch.setattr(os, "getppid", lambda: 1))
    with pytest.raises(Interrupted, match="stopped at step 5, which is saved") as caught:
        run(task)
    assert caught.value.code == 143
    monkeypatch.setattr(os, "getppid", lambda: real)
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"-bash\0")
    other = Launcher()
    monkeypatch.setattr(os, "getppid", lambda: 1)  # nohup: the shell may go
    assert not other.signal()
