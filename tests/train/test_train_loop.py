"""The training loop: steps, checkpoints, early stopping, logging, errors."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_task import ToyTask, toy

from eligo.errors import ConfigError, EligoError, InputError
from eligo.train import (
    FitResult,
    Progress,
    StepOutput,
    fit,
    load_weights,
    lr_factor,
    reset_optimizer,
    save_weights,
)


def run(task: ToyTask, **options: Any) -> FitResult:
    return fit(task, task.config.train, **options)


def lines(result: FitResult, split: str) -> list[dict[str, Any]]:
    parsed = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in parsed if line["split"] == split]


def weights(task: ToyTask) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, module in task.modules.items()
        for key, value in module.state_dict().items()
    }


def test_training_equals_a_plain_loop(tmp_path: Path) -> None:
    """Two optimisers, own schedules, clipping, decay groups, projection: against plain torch."""
    changes = {"noise": False, "train__clip_norm": 0.2, "head__weight_decay": 0.3}
    task, other = toy(tmp_path, **changes), toy(tmp_path, **changes)
    result = run(task)
    assert result.ended == "total_steps"
    assert result.last_step == 12

    config = other.config
    body = torch.optim.AdamW(
        [{"params": [other.body[0].weight]}, {"params": [other.body[0].bias], "weight_decay": 0}],  # pyright: ignore
        lr=config.body.lr,
        foreach=False,
    )
    linear = other.head.linear
    head = torch.optim.AdamW(
        [
            {"params": [linear.weight], "weight_decay": 0.3},
            {"params": [linear.bias], "weight_decay": 0},
            {"params": [other.head.scale], "weight_decay": 0, "lr": 10 * config.head.lr},
        ],
        lr=config.head.lr,
        foreach=False,
    )
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in (body, head)]
    batches = other.batches(0, 0, 1, torch.device("cpu"))
    for step in range(12):
        output = other.step(next(batches), Progress(step, 12))
        torch.stack(list(output.losses.values())).sum().backward()
        for optimizer, spec, peak in zip((body, head), (config.body, config.head), peaks):  # noqa: B905
            for group, lr in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = lr * lr_factor(spec.schedule, step, 12)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, 0.2)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            other.head.project_()
    torch.testing.assert_close(weights(task), weights(other), rtol=1e-5, atol=1e-6)
    assert other.head.scale.item() in (pytest.approx(0.9), pytest.approx(1.1))

    written = lines(result, "train")
    assert [line["step"] for line in written] == list(range(1, 13))
    for step, line in enumerate(written):
        assert line["lr/body"] == config.body.lr * lr_factor(config.body.schedule, step, 12)
        assert line["lr/head"] == config.head.lr * lr_factor(config.head.schedule, step, 12)
        assert line["gradient_norm/body"] > 0
    assert task.seen == [config.temperature.at(step / 12) for step in range(12)]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accumulation_equals_a_large_batch(tmp_path: Path, precision: str) -> None:
    whole = toy(tmp_path, "whole", noise=False, train__precision=precision)
    parts = toy(
        tmp_path,
        "parts",
        noise=False,
        train__precision=precision,
        train__gradient_accumulation=4,
        train__log_every=5,
    )
    run(whole)
    result = run(parts)
    close = {"rtol": 1e-5, "atol": 1e-6} if precision == "no" else {"rtol": 0.1, "atol": 2e-2}
    torch.testing.assert_close(weights(whole), weights(parts), **close)
    assert [line["step"] for line in lines(result, "train")] == [5, 10, 12]


class Uneven(ToyTask):
    """Masks a different number of rows of each part; the loss is a mean over the rest."""

    def step(self, batch: tuple[Tensor, Tensor], progress: Progress) -> StepOutput:
        x, y = batch
        kept = x[:, 0] > 0.3
        error = (self.head(self.body(x)) - y).square().flatten()
        count = kept.sum()
        return StepOutput({"fit": (error * kept).sum() / count.clamp(min=1)}, weight=count.float())


def test_accumulated_parts_are_weighted(tmp_path: Path) -> None:
    whole = Uneven(toy(tmp_path, "whole").config)
    parts = Uneven(toy(tmp_path, "parts", train__gradient_accumulation=2).config)
    load_like(parts, whole)
    first, second = run(whole), run(parts)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-5, atol=1e-6)
    for a, b in zip(lines(first, "train"), lines(second, "train"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def load_like(task: ToyTask, other: ToyTask) -> None:
    for name, module in task.modules.items():
        module.load_state_dict(other.modules[name].state_dict())


def test_bf16_runs_under_autocast(tmp_path: Path) -> None:
    task = toy(tmp_path, train__precision="bf16", train__total_steps=2)
    dtypes = []
    task.body.register_forward_hook(lambda *args: dtypes.append(args[2].dtype))
    run(task)
    assert set(dtypes) == {torch.bfloat16}
    assert task.head.linear.weight.dtype == torch.float32


def test_fp16_and_uneven_batches_are_refused_on_a_cpu(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="fp16 needs a GPU"):
            run(toy(tmp_path, train__precision="fp16"))
    with pytest.raises(ConfigError, match="batch_size 16 cannot be split into 3"):
        run(toy(tmp_path, train__gradient_accumulation=3))


class Scripted(ToyTask):
    """The given validation metrics."""

    script = (3.0, 1.0, 2.0, math.nan, 1.0, 0.5)

    def evaluate(self) -> dict[str, float]:
        self.calls = getattr(self, "calls", 0) + 1
        return {"score": self.script[self.calls - 1]}


def scripted(tmp_path: Path, **changes: Any) -> Scripted:
    base = {"train__evaluate_every": 2, "train__checkpoint_every": 2, "train__monitor": "score"}
    return Scripted(toy(tmp_path, **(base | changes)).config)


def test_early_stopping_keeps_best_and_last(tmp_path: Path) -> None:
    result = run(scripted(tmp_path, train__patience=3, train__keep_checkpoints=1))
    assert (result.ended, result.last_step) == ("patience", 10)
    assert (result.best_step, result.best) == (4, {"score": 1.0})
    assert (result.folder / "best").resolve().name == "step_000004"
    assert (result.folder / "last").resolve().name == "step_000010"
    kept = sorted(path.name for path in (result.folder / "checkpoints").iterdir())
    assert kept == ["step_000004", "step_000010"]
    validation = lines(result, "validation")
    assert [line["score"] for line in validation] == [3.0, 1.0, 2.0, None, 1.0]
    again = run(scripted(tmp_path, train__patience=3, train__keep_checkpoints=1), resume=True)
    assert (again.ended, again.last_step) == ("patience", 10)


def test_mode_max_keeps_the_highest(tmp_path: Path) -> None:
    result = run(scripted(tmp_path, train__mode="max"))
    assert (result.best_step, result.ended) == (2, "total_steps")


def test_unknown_monitor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'scores' is not among .*: score"):
        run(scripted(tmp_path, train__monitor="scores"))


def test_tensorboard_and_log_have_the_same_metrics(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(toy(tmp_path))
    board = reader.EventAccumulator(str(result.folder / "tensorboard"))
    board.Reload()
    written = lines(result, "train")
    scalars = board.Scalars("train/loss/fit")
    assert [scalar.step for scalar in scalars] == [line["step"] for line in written]
    assert scalars[3].value == pytest.approx(written[3]["loss/fit"])
    assert len(board.Scalars("validation/loss")) == 3


def test_metrics_are_written_without_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with caplog.at_level("INFO", logger="eligo.train"):
        result = run(toy(tmp_path, train__total_steps=2))
    assert len(lines(result, "train")) == 2
    assert not (result.folder / "tensorboard").exists()
    assert [record.message for record in caplog.records] == [
        "tensorboard is not installed (extra: tensorboard); metrics.jsonl only"
    ]


def test_single_nonfinite_steps_are_skipped(tmp_path: Path) -> None:
    task = toy(tmp_path, "some", noise=False, nonfinite_steps=[3, 4, 9])
    result = run(task)
    assert result.skipped == 3
    assert all(value.isfinite().all() for value in weights(task).values())
    written = lines(result, "train")
    assert written[3]["loss"] is None
    assert [line["skipped"] for line in written] == [0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3]


def test_skipped_step_changes_nothing(tmp_path: Path) -> None:
    task = toy(tmp_path, "none", nonfinite_steps=list(range(12)), train__max_nonfinite=20)
    before = weights(task)
    run(task)
    torch.testing.assert_close(weights(task), before, rtol=0, atol=0)


def test_persistent_nonfinite_steps_stop_the_run(tmp_path: Path) -> None:
    task = toy(tmp_path, nonfinite_steps=list(range(5, 12)), train__max_nonfinite=3)
    with pytest.raises(EligoError, match="3 steps in a row, up to step 8"):
        run(task)
    assert (tmp_path / "run" / "last").resolve().name == "step_000004"


def test_runs_are_never_overwritten_or_mixed(tmp_path: Path) -> None:
    run(toy(tmp_path, train__total_steps=4))
    with pytest.raises(InputError, match="already holds a run; continue it with --resume"):
        run(toy(tmp_path, train__total_steps=4))
    with pytest.raises(ConfigError, match=r"(?s)head.lr: 0.01 there, 0.5 now"):
        run(toy(tmp_path, train__total_steps=4, head__lr=0.5), resume=True)
    saved = tmp_path / "run" / "config.yaml"
    text = saved.read_text()
    saved.write_text(text.replace("  seed: 0\n", ""))  # of a version that had no such key
    with pytest.raises(ConfigError, match=r"^cannot .* \(train.seed: nothing there, 0 now\); undo"):
        run(toy(tmp_path, train__total_steps=4), resume=True)
    saved.write_text(text)
    assert run(toy(tmp_path, train__total_steps=4), resume=True).last_step == 4


def test_time_limit_stops_with_a_checkpoint_and_resumes(tmp_path: Path) -> None:
    whole, parts = toy(tmp_path, "whole"), toy(tmp_path, "parts", train__max_minutes=1e-9)
    result = run(parts)
    assert (result.ended, result.last_step) == ("max_minutes", 1)
    for _ in range(20):
        parts = toy(tmp_path, "parts", train__max_minutes=1e-9)
        result = run(parts, resume=True)
        if result.ended != "max_minutes":
            break
    assert (result.ended, result.last_step) == ("total_steps", 12)
    timeless = [
        [
            {k: v for k, v in line.items() if not k.startswith(("second", "steps_per"))}
            for line in lines(each, "train")
        ]
        for each in (run(whole), result)
    ]
    assert timeless[0] == timeless[1]
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)


def test_time_limit_before_the_first_evaluation_evaluates_at_the_end(
    tmp_path: Path,
) -> None:
    result = run(toy(tmp_path, train__max_minutes=1e-9, train__evaluate_every=100))
    assert (result.ended, result.last_step, result.best_step) == ("max_minutes", 1, 1)
    assert [line["step"] for line in lines(result, "validation")] == [1]
    for link in ("best", "last"):
        assert (result.folder / link).resolve().name == "step_000001"
    assert result.best["loss"] == lines(result, "validation")[0]["loss"]


def test_max_minutes_evaluates_once_without_using_patience(tmp_path: Path) -> None:
    """Scores 3, 1, then worse; the clock ends every step, evaluations of even steps count."""
    options = {"train__max_minutes": 1e-9, "train__patience": 2}
    task = scripted(tmp_path, **options)
    assert (run(task).ended, task.calls) == ("max_minutes", 1)
    for step, score in enumerate((1.0, 2.0, 2.0, 2.0), 2):
        task = scripted(tmp_path, **options)
        task.script = (score,)
        result = run(task, resume=True)
        assert (result.last_step, task.calls) == (step, 1)
        assert result.ended == "max_minutes"
    task = scripted(tmp_path, **options)
    task.script = (2.0,)
    result = run(task, resume=True)
    assert (result.ended, result.last_step, result.best_step) == ("patience", 6, 2)
    validation = lines(result, "validation")
    assert [line["step"] for line in validation] == [1, 2, 3, 4, 5, 6]


def test_running_means_survive_a_stop(tmp_path: Path) -> None:
    """The mean of a line covers steps before and after the checkpoint."""
    whole = run(toy(tmp_path, "whole", train__log_every=3, train__evaluate_every=2))
    options = {"train__log_every": 3, "train__evaluate_every": 2}
    stopped = run(toy(tmp_path, "parts", **options), on_evaluate=lambda step, _: step == 8)
    assert (stopped.ended, stopped.last_step) == ("stopped", 8)
    parts = run(toy(tmp_path, "parts", **options), resume=True)
    losses = [[line["loss"] for line in lines(each, "train")] for each in (whole, parts)]
    assert losses[0] == losses[1]


def test_init_from_half_precision_with_fresh_optimisers(tmp_path: Path) -> None:
    donor = toy(tmp_path, "donor")
    run(donor)
    save_weights(tmp_path / "half", donor.modules, dtype=torch.float16)
    task = toy(
        tmp_path, "heir", train__init_from=str(tmp_path / "half"), body__lr=0.0, head__lr=0.0
    )
    run(task)
    torch.testing.assert_close(weights(task), weights(donor), rtol=1e-3, atol=1e-4)


def test_average_is_evaluated_published_and_resumed(tmp_path: Path) -> None:
    options = {"train__ema_decay": 0.8}
    whole = toy(tmp_path, "whole", **options)
    result = run(whole)
    published = toy(tmp_path)
    load_weights(result.folder / "last", published.modules)
    assert not torch.equal(published.head.linear.weight, whole.head.linear.weight)
    with torch.no_grad():
        expected = published.evaluate()["loss"]
    assert lines(result, "validation")[-1]["loss"] == pytest.approx(expected, rel=1e-6)

    run(toy(tmp_path, "parts", **options), on_evaluate=lambda step, _: step == 4)
    parts = toy(tmp_path, "parts", **options)
    resumed = run(parts, resume=True)
    assert lines(resumed, "validation") == lines(result, "validation")
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)


class Forgetful(ToyTask):
    """Starts its head anew after some steps, as an adversary would."""

    def after_step(self, progress: Progress, optimizers: Any) -> None:
        self.draws = [*getattr(self, "draws", []), torch.rand(()).item()]
        if progress.step == 10:
            reset_optimizer(optimizers["head"])
        self.states = {name: optimizer.state for name, optimizer in optimizers.items()}


def test_task_can_reset_an_optimiser(tmp_path: Path) -> None:
    task = Forgetful(toy(tmp_path).config)
    run(task)
    steps = {
        name: {int(state["step"].item()) for state in states.values()}
        for name, states in task.states.items()
    }
    assert steps == {"body": {12}, "head": {1}}
    assert len(set(task.draws)) == 12


def test_checkpoints_contain_no_pickles(tmp_path: Path) -> None:
    result = run(toy(tmp_path, train__total_steps=2))
    files = {path.suffix for path in (result.folder / "last").resolve().rglob("*.*")}
    assert files == {".safetensors", ".json", ".yaml"}


def test_batches_that_run_out_are_an_error(tmp_path: Path) -> None:
    task = toy(tmp_path)
    task.batches = lambda *_: iter([(torch.zeros(16, 8), torch.zeros(16, 1))])
    with pytest.raises(EligoError, match="ended at step 1 of 12"):
        run(task)
