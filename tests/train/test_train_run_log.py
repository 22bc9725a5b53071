"""`training.log`: what a run printed, with times, from the first message to the final error."""

import logging
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from toy_task import ToyTask, toy

from eligo.cli import main
from eligo.errors import EligoError, InputError, OutputError
from eligo.io.files import GrowingFile
from eligo.io.interrupts import Interrupted
from eligo.train import SearchConfig, fit, run_search
from eligo.train.config import RangeConfig
from eligo.train.run_log import RunLog, record_messages

LOGGER = logging.getLogger("eligo.somewhere")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING|ERROR) +(.*)")
SHORT: dict[str, Any] = {
    "train__total_steps": 4, "train__evaluate_every": 2, "train__checkpoint_every": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def info_messages() -> Any:
    """As in a command: messages are shown from INFO on."""
    logger = logging.getLogger("eligo")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def run(task: ToyTask, **options: Any) -> None:
    fit(task, task.config.train, **options)


def messages(folder: Path) -> list[str]:
    """Messages of a log without times; lines of a longer message have none."""
    lines = (folder / "training.log").read_text(encoding="utf-8").splitlines()
    assert LINE.fullmatch(lines[0])
    return [found[2] if (found := LINE.fullmatch(line)) else line for line in lines]


def levels(folder: Path) -> set[str]:
    return set(LINE.sub(r"\1", (folder / "training.log").read_text()).splitlines())


def at_step(task: ToyTask, number: int, do: Any) -> ToyTask:
    original = task.step

    def step(batch: Any, progress: Any) -> Any:
        if progress.step == number:
            do()
        return original(batch, progress)

    task.step = step
    return task


def fail(error: BaseException) -> Any:
    def do() -> None:
        raise error

    return do


def test_log_holds_steps_evaluations_messages_and_warnings(tmp_path: Path) -> None:
    def speak() -> None:
        LOGGER.info("100 %% of %s", "things")
        LOGGER.debug("not shown")
        warnings.warn("odd data", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="odd data"):
        run(at_step(toy(tmp_path, **SHORT), 1, speak))
    found = messages(tmp_path / "run")
    number = r"[0-9.e+-]+"
    assert found[0] == "run run starts"
    rates = rf"{number} \(body\), {number} \(head\)"
    parts = rf"\(fit {number}, size {number}\)"
    assert re.fullmatch(rf"step 1/4, loss {number} {parts}, lr {rates}", found[1])
    assert found[2] == "100 % of things"
    assert "UserWarning: odd data" in found[3]
    shown = [line for line in found[4:] if line.startswith(("step", "ended"))]
    assert [line.split(",")[0] for line in shown] == [
        "step 2/4", "step 2", "step 3/4", "step 4/4", "step 4", "ended at step 4 (total_steps)",
    ]  # fmt: skip
    assert re.fullmatch(rf"step 2, validation loss {number}, the best so far", shown[1])
    assert not any("not shown" in line for line in found)


def test_messages_before_the_run_are_not_lost(tmp_path: Path) -> None:
    with record_messages() as log:
        LOGGER.info("what will be trained")
        run(toy(tmp_path, **SHORT))
        LOGGER.warning("it is done")
        log.write("a table\nof two lines")
    found = messages(tmp_path / "run")
    assert found[:2] == ["run run starts", "what will be trained"]
    assert found[-3:] == ["it is done", "a table", "of two lines"]
    LOGGER.info("another command")
    assert messages(tmp_path / "run") == found


def test_resumed_run_appends(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        run(at_step(toy(tmp_path, **SHORT), 3, fail(InputError("a picture is torn"))))
    first = messages(tmp_path / "run")
    assert first[-1] == "a picture is torn"
    assert "ERROR" in levels(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        run(toy(tmp_path, **SHORT))
    assert messages(tmp_path / "run") == first  # another run's log is left alone
    run(toy(tmp_path, **SHORT), resume=True)
    second = messages(tmp_path / "run")
    assert second[: len(first) + 1] == [*first, "run run is resumed after step 2"]
    assert second[-1].startswith("ended at step 4")


def test_failure_before_the_first_checkpoint_leaves_its_log(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(at_step(toy(tmp_path, **SHORT), 1, fail(ZeroDivisionError("by none"))))
    first = messages(tmp_path / "run")
    assert (first[-1], "Traceback (most recent call last):" in first) == (
        "ZeroDivisionError: by none", True,
    )  # fmt: skip
    run(toy(tmp_path, **SHORT))
    assert messages(tmp_path / "run")[len(first)] == "run run starts"


def test_interrupted_run_says_what_is_saved(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(at_step(toy(tmp_path, **SHORT), 3, fail(Interrupted(2, "stopped at step 2"))))
    assert messages(tmp_path / "run")[-1] == "stopped at step 2"


def test_runs_at_the_same_time_have_their_own_logs(tmp_path: Path) -> None:
    def inner() -> None:
        thread = threading.Thread(target=run, args=(toy(tmp_path, "inner", **SHORT),))
        thread.start()
        thread.join()

    run(at_step(toy(tmp_path, "outer", **SHORT), 1, inner))
    for name in ("inner", "outer"):
        found = messages(tmp_path / name)
        assert found[0] == f"run {name} starts"
        assert sum(line.startswith("step 3/4") for line in found) == 1
    assert not any(isinstance(part, RunLog) for part in logging.getLogger("eligo").handlers)


@pytest.mark.parametrize("number", [1, 3, 6])
def test_full_disk_ends_the_run_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write, count = GrowingFile.write, iter(range(1, 1000))

    def full(file: GrowingFile, content: bytes) -> None:
        if file.path.name == "training.log" and next(count) >= number:
            raise OutputError(f"{file.path}: cannot be written (No space left on device)")
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(GrowingFile, "write", full)
        with pytest.raises(OutputError, match=r"training\.log: cannot be written"):
            run(toy(tmp_path, **SHORT))
    run(toy(tmp_path, **SHORT), resume=True)
    assert messages(tmp_path / "run")[-1].startswith("ended at step 4")


def test_every_trial_of_a_search_has_a_log(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra: search)")
    config = toy(tmp_path, **SHORT).config
    space: dict[str, Any] = {"head.lr": RangeConfig(low=1e-4, high=1e-1, log=True)}
    with record_messages():
        LOGGER.info("before all")
        folder = run_search(config, SearchConfig(trials=2, space=space)).folder
    logs = [messages(folder / f"trial_000{number}") for number in (0, 1)]
    assert [found[0] for found in logs] == ["run trial_0000 starts", "run trial_0001 starts"]
    assert ["before all" in found for found in logs] == [True, False]
    # What is said between two trials is in both.
    assert logs[0][-2].startswith("ended at step")
    assert logs[0][-1].startswith("trial_0001: head.lr")
    assert logs[1][1].startswith("trial_0001: head.lr")
    assert logs[1][-1].startswith("ended at step")


def test_failed_trial_is_named_in_its_log(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra: search)")
    config = toy(tmp_path, nonfinite_steps=[1, 2], train__max_nonfinite=2, **SHORT).config
    with record_messages():
        folder = run_search(config, SearchConfig(trials=1, space={"width": [4]})).folder
    assert messages(folder / "trial_0000")[-1].startswith("trial_0000 failed: ")


def test_command_writes_its_description_and_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["tokens", "train", "--smoke", "--train.name", "mine"]
    for _ in range(2):  # the second replaces the first
        assert main(command) == 0
    capsys.readouterr()
    found = messages(Path("runs/mine_smoke"))
    assert found[:2] == ["run mine_smoke starts", "host: LLaVA, frozen; 6 layers"]
    assert [line for line in found if line.startswith("run ")] == found[:1]
    assert any(line.startswith("evaluation: ") for line in found)
    assert found[-2].startswith("│ skipped")
    assert main([*command, "--train.monitor", "nothing"]) == 2
    assert messages(Path("runs/mine_smoke")) == found


def test_error_after_the_training_is_written(tmp_path: Path) -> None:
    def command() -> None:
        with record_messages():
            run(toy(tmp_path, **SHORT))
            raise EligoError("the model cannot be saved")

    with pytest.raises(EligoError):
        command()
    assert messages(tmp_path / "run")[-1] == "the model cannot be saved"
