"""A step is saved before its evaluation, so an error or kill loses only the evaluation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train_loop import Scripted, lines, run, scripted, weights
from toy_task import ToyTask, toy

from eligo.errors import ConfigError, InputError
from eligo.train import seed_everything
from eligo.train.checkpoint import RunState


class Broken(ToyTask):
    """Evaluations that fail from a given one on."""

    error: Exception = InputError("val/7.png: cannot be read")
    good = 0

    def evaluate(self) -> dict[str, float]:
        if self.good <= 0:
            raise self.error
        self.good -= 1
        return super().evaluate()


def broken(out: Path, good: int = 0, **changes: Any) -> Broken:
    config = toy(out, **changes).config
    seed_everything(config.train.seed)
    task = Broken(config)
    task.good = good
    return task


def timeless(folder: Path) -> list[dict[str, Any]]:
    parsed = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "steps_per_second")}
        for line in parsed
    ]


@pytest.mark.parametrize("good", [0, 1])
def test_failed_evaluation_keeps_the_step_and_is_repeated(tmp_path: Path, good: int) -> None:
    options = {"train__patience": 2, "train__evaluate_every": 3, "train__checkpoint_every": 100}
    whole = toy(tmp_path, "whole", **options)
    expected = run(whole)
    step = 3 * (good + 1)
    with pytest.raises(InputError) as caught:
        run(broken(tmp_path, good, **options))
    message = str(caught.value)
    assert message.startswith("val/7.png: cannot be read; ")
    assert f"step {step} is saved: continue with --resume" in message
    assert (tmp_path / "run" / "last").resolve().name == f"step_{step:06d}"

    parts = toy(tmp_path, **options)
    result = run(parts, resume=True)
    assert (result.ended, result.best_step, result.best) == (
        expected.ended, expected.best_step, expected.best,
    )  # fmt: skip
    assert timeless(result.folder) == timeless(expected.folder)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)


def test_error_in_an_evaluation_names_the_saved_step(tmp_path: Path) -> None:
    task = broken(tmp_path)
    task.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError) as caught:
        run(task)
    assert caught.value.__notes__ == ["step 4 is saved: continue with --resume, which evaluates it"]
    assert (tmp_path / "run" / "last").resolve().name == "step_000004"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [False, True])
def test_best_and_patience_equal_the_uninterrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Scores 3, 1, 2, NaN, 1: killed at every evaluation, beside the small file it writes."""
    options = {"train__patience": 3, "train__keep_checkpoints": 1}
    expected = run(scripted(tmp_path, train__name="whole", **options))
    assert (expected.ended, expected.last_step, expected.best_step) == ("patience", 10, 4)

    original = RunState.save_train_state

    def dying(self: RunState, folder: Path) -> None:
        if after:
            original(self, folder)
        raise Killed

    done = 0
    for _ in range(5):
        task = scripted(tmp_path, **options)
        task.script = Scripted.script[done:]
        monkeypatch.setattr(RunState, "save_train_state", dying)
        with pytest.raises(Killed):
            run(task, resume=True)
        if after:
            done += 1
            continue
        monkeypatch.setattr(RunState, "save_train_state", original)
        task = scripted(tmp_path, **options)
        task.script = Scripted.script[done:]
        steps = 2 * (done + 1)
        run(task, resume=True, on_evaluate=lambda step, _, steps=steps: step == steps)
        done += 1
    monkeypatch.setattr(RunState, "save_train_state", original)
    result = run(scripted(tmp_path, **options), resume=True)
    assert (result.ended, result.last_step, result.best_step) == ("patience", 10, 4)
    assert result.best == expected.best
    assert timeless(result.folder) == timeless(expected.folder)
    kept = [
        sorted(p.name for p in (r.folder / "checkpoints").iterdir()) for r in (expected, result)
    ]
    assert kept[0] == kept[1] == ["step_000004", "step_000010"]
    assert (result.folder / "best").resolve().name == "step_000004"


def test_weights_are_written_once_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    original = RunState.save
    monkeypatch.setattr(
        RunState,
        "save",
        lambda self, *args: (saved.append(self.train_state.step), original(self, *args)),
    )
    run(toy(tmp_path, train__evaluate_every=4, train__checkpoint_every=6))
    assert saved == [4, 6, 8, 12]


def test_unknown_monitor_is_refused_before_the_first_step(tmp_path: Path) -> None:
    task = scripted(tmp_path, train__monitor="scor")
    task.metric_names = lambda: ("loss", "score")
    with pytest.raises(ConfigError, match=r"'scor' is not among .*: loss, score; did you mean sc"):
        run(task)
    assert task.seen == []
    assert not (tmp_path / "run").exists()


def test_task_without_metric_names_can_change_its_monitor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="step 2 is saved"):
        run(scripted(tmp_path, train__monitor="scores"))
    result = run(scripted(tmp_path), resume=True)
    assert (result.last_step, result.best_step) == (12, 12)
    with pytest.raises(ConfigError, match=r"train.monitor: score there, other now"):
        run(scripted(tmp_path, train__monitor="other"), resume=True)


def test_without_finite_metrics_the_last_step_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = scripted(tmp_path)
    task.script = (float("nan"),) * 6
    result = run(task)
    assert result.best_step is None
    assert result.chosen.resolve().name == "step_000012"
    assert "score is NaN at step 2" in caplog.text


class Checked(ToyTask):
    bad: tuple[int, ...] = ()

    def check(self, check: Any) -> None:
        check.each("examples", range(1000), self.look)

    def look(self, number: int) -> None:
        if number in self.bad:
            raise InputError(f"{number:04d}.png: cannot be read")


def test_all_data_are_checked_before_the_first_step(tmp_path: Path) -> None:
    task = Checked(toy(tmp_path).config)
    task.bad = tuple(range(900, 907))
    with pytest.raises(InputError) as caught:
        run(task)
    assert str(caught.value).splitlines() == [
        "the data have 7 problems:",
        *(f"  0{n}.png: cannot be read" for n in range(900, 905)),
        "  and 2 more",
    ]
    assert task.seen == []
    assert not (tmp_path / "run").exists()
    task.bad = (3,)
    with pytest.raises(InputError, match=r"^0003.png: cannot be read$"):
        run(task)
    unchecked = Checked(toy(tmp_path, train__check_data=False).config)
    unchecked.bad = (3,)
    assert run(unchecked).last_step == 12
    assert run(task, resume=True).last_step == 12  # nothing is left to train, nor to check


def test_smoke_run_replaces_only_a_smoke_run(tmp_path: Path) -> None:
    run(toy(tmp_path, train__smoke=True, train__total_steps=4))
    assert run(toy(tmp_path, train__smoke=True, train__total_steps=8)).last_step == 8
    with pytest.raises(InputError, match="already holds a run"):
        run(toy(tmp_path))
    run(toy(tmp_path, "real"))
    with pytest.raises(InputError, match="already holds a run"):
        run(toy(tmp_path, "real", train__smoke=True))
    assert len(lines(run(toy(tmp_path, "real"), resume=True), "train")) == 12
