"""The one training loop: `fit` trains a `Task` into a run folder and can be killed at any moment.

It is launched alone or by `accelerate launch -m eligo ...`, on a CPU or on GPUs. A step's batch is
split into (processes x gradient accumulation) equal parts that all count alike, so the same global
batch gives the same gradients however it is split. Everything random in a step is seeded from
(seed, step, part) and learning rates are functions of the step: besides weights and moments there
is hardly any state to save, and a resumed run repeats the unbroken one bit for bit on a CPU.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from eligo.errors import ConfigError, EligoError
from eligo.train.checkpoint import RunState
from eligo.train.config import TrainConfig
from eligo.train.ema import WeightAverage
from eligo.train.log import Meter, MetricLog
from eligo.train.processes import Processes
from eligo.train.progress import ProgressBar
from eligo.train.rng import seed_everything
from eligo.train.run_folder import RunFolder, run_record
from eligo.train.task import Progress, Task
from eligo.train.update import Updater
from eligo.train.weights import load_weights

Ending = Literal["total_steps", "patience", "max_minutes", "stopped"]
OnEvaluate = Callable[[int, Mapping[str, float]], bool]

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AFTER_STEP, _EVALUATION = -1, -2  # stand in for the part or the step when seeding


@dataclass(frozen=True)
class FitResult:
    """What a training came to."""

    folder: Path
    """The run folder; `best` and `last` in it are checkpoints."""
    ended: Ending
    """All steps done, `patience` evaluations without a new best, out of time, or told to stop."""
    last_step: int
    best_step: int | None
    best: dict[str, float]
    """Validation metrics of the best checkpoint."""
    skipped: int
    """Steps skipped because loss or gradients were not finite."""


def fit(
    task: Task,
    config: TrainConfig,
    *,
    resume: bool = False,
    on_evaluate: OnEvaluate | None = None,
) -> FitResult:
    """Train until the steps, the patience or the minutes are used up.

    With `resume`, continue from the newest checkpoint in the run folder, or start anew if there
    is none. `on_evaluate(step, metrics)` sees every evaluation and may return True to stop. The
    last step is evaluated however the run ends, so that it can be the best.
    """
    with RunFolder(config.folder).locked(Processes()):
        loop = _Loop(task, config, resume, on_evaluate)
        try:
            return loop.run()
        except BaseException:
            if loop.processes.is_main:
                loop.folder.abandon()
            raise


class _Loop:
    def __init__(
        self, task: Task, config: TrainConfig, resume: bool, on_evaluate: OnEvaluate | None
    ) -> None:
        self.task, self.config, self.on_evaluate = task, config, on_evaluate
        self.processes = processes = Processes()
        self.num_parts = processes.count * config.gradient_accumulation
        _check(config, processes, self.num_parts)
        self.record = run_record(task.config, config)
        self.folder = RunFolder(config.folder)
        self.folder.check(self.record, resume)
        self.began = time.monotonic()
        self.saved_step = max(self.folder.steps(), default=None)

        task.to(processes.device)
        if config.init_from is not None and self.saved_step is None:
            load_weights(config.init_from, task.modules)
        self.state = RunState(
            processes=processes,
            modules=task.modules,
            updater=Updater(task, config, processes),
            meter=Meter(processes),
            average=None,
        )
        self.state.share_weights(buffers_only=False)
        if config.ema_decay is not None:
            self.state.average = WeightAverage(task.modules, config.ema_decay)
        if self.saved_step is not None:
            self.state.load(self.folder.checkpoint(self.saved_step))
        self.standing = self.state.standing

        processes.wait()  # all have read what the first one now tidies
        if processes.is_main:
            self.folder.prepare(
                self.record, self.standing.step, self.standing.best_step, config.keep_checkpoints
            )
        self.log = MetricLog(self.folder.path, self.standing.step) if processes.is_main else None
        self.bar = ProgressBar(
            config.name, config.total_steps, self.standing.step, visible=processes.is_main
        )
        self.logged = (self.standing.step, self.began)

    def run(self) -> FitResult:
        """All the steps that are left."""
        config, standing = self.config, self.standing
        streams = self._streams()
        self._set_training(True)
        ended = self._ended()
        try:
            with self.bar:
                while ended is None:
                    self._step(streams)
                    last = standing.step == config.total_steps
                    logs = last or standing.step % config.log_every == 0
                    improved = stopped = False
                    if logs:
                        self._write_metrics()
                    evaluates = last or standing.step % config.evaluate_every == 0
                    if evaluates:
                        improved, stopped = self._evaluate()
                    ended = "stopped" if stopped else self._ended(look_at_clock=logs)
                    if ended and not evaluates:  # the end may be the best, or all there is
                        improved, _ = self._evaluate(counts=False)
                    if ended or improved or standing.step % config.checkpoint_every == 0:
                        self._save()
        finally:
            for stream in streams:
                if close := getattr(stream, "close", None):
                    close()
            if self.log is not None:
                self.log.close()
        return FitResult(
            folder=self.folder.path,
            ended=ended,
            last_step=standing.step,
            best_step=standing.best_step,
            best=standing.best,
            skipped=self.state.updater.check(standing.step),
        )

    def _streams(self) -> list[Iterator[Any]]:
        # An accumulated part is to the task what a process is: a share of the batch.
        first = self.processes.index * self.config.gradient_accumulation
        self.parts = range(first, first + self.config.gradient_accumulation)
        return [
            self.task.batches(self.standing.step, part, self.num_parts, self.processes.device)
            for part in self.parts
        ]

    def _step(self, streams: list[Iterator[Any]]) -> None:
        config, state, step = self.config, self.state, self.standing.step
        progress = Progress(step, config.total_steps)
        for part, stream in zip(self.parts, streams, strict=True):
            batch = next(stream, None)
            if batch is None:
                raise EligoError(f"the task's batches ended at step {step} of {config.total_steps}")
            seed_everything(config.seed, step, part)
            with self._autocast():
                output = self.task.step(batch, progress)
            loss = state.updater.backward(output)
            losses = {f"loss/{name}": value for name, value in output.losses.items()}
            state.meter.add({"loss": loss} | losses | output.metrics, output.weight)
        norms = state.updater.step(step)
        state.meter.add({f"gradient_norm/{name}": norm for name, norm in norms.items()})
        if state.average is not None:
            state.average.update(step)
        seed_everything(config.seed, step, _AFTER_STEP)
        self.task.after_step(progress, state.updater.optimizers)
        self.standing.step = step + 1

    def _write_metrics(self) -> None:
        step, now = self.standing.step, time.monotonic()
        values = self.state.meter.means()
        skipped = self.state.updater.check(step)
        if self.log is not None:
            last_step, last_time = self.logged
            self.logged = (step, now)
            rates = self.state.updater.rates(step - 1)
            values |= {f"lr/{name}": rate for name, rate in rates.items()}
            values |= {
                "skipped": skipped,
                "steps_per_second": (step - last_step) / max(1e-9, now - last_time),
                "seconds": now - self.began,
            }
            self.log.write(step, "train", values)
        self.bar.update(step, f"loss {values.get('loss', math.nan):.4g}")

    def _evaluate(self, counts: bool = True) -> tuple[bool, bool]:
        """Evaluate, remember a new best; returns (improved, told to stop).

        One that only the clock brought about does not count against `patience`.
        """
        standing, config = self.standing, self.config
        self.state.share_weights(buffers_only=True)
        self._set_training(False)
        seed_everything(config.seed, _EVALUATION)
        average = self.state.average
        with torch.no_grad(), self._autocast(), average.swapped() if average else nullcontext():
            metrics = {name: float(value) for name, value in self.task.evaluate().items()}
        self._set_training(True)
        metrics = self.processes.of_first(metrics)
        if config.monitor not in metrics:
            raise ConfigError(
                f"train.monitor {config.monitor!r} is not among the validation metrics: "
                f"{', '.join(metrics)}"
            )
        if self.log is not None:
            self.log.write(standing.step, "validation", metrics)
        sign = 1 if config.mode == "max" else -1
        best = sign * standing.best[config.monitor] if standing.best else -math.inf
        improved = sign * metrics[config.monitor] > best
        standing.evaluations_since_best += counts
        if improved:
            standing.evaluations_since_best = 0
            standing.best_step, standing.best = standing.step, metrics
        stop = self.on_evaluate is not None and self.on_evaluate(standing.step, metrics)
        return improved, self.processes.of_first(stop)

    def _ended(self, look_at_clock: bool = False) -> Ending | None:
        config, standing = self.config, self.standing
        if standing.step >= config.total_steps:
            return "total_steps"
        if config.patience is not None and standing.evaluations_since_best >= config.patience:
            return "patience"
        if look_at_clock and config.max_minutes is not None:
            minutes = (time.monotonic() - self.began) / 60
            if self.processes.of_first(minutes >= config.max_minutes):
                return "max_minutes"
        return None

    def _save(self) -> None:
        standing = self.standing
        if standing.step == self.saved_step:
            return
        self.state.share_weights(buffers_only=True)
        summary = self.state.summary(self.record)
        if self.processes.is_main:
            with self.folder.writing(standing.step) as folder:
                self.state.save(folder, self.record, summary)
            self.folder.settle(standing.best_step, self.config.keep_checkpoints)
        self.saved_step = standing.step
        self.processes.wait()

    def _autocast(self) -> torch.autocast:
        precision = self.config.precision
        return torch.autocast(
            self.processes.device.type, _DTYPES[precision], enabled=precision != "no"
        )

    def _set_training(self, training: bool) -> None:
        for module in self.task.modules.values():
            module.train(training)


def _check(config: TrainConfig, processes: Processes, num_parts: int) -> None:
    if config.batch_size % num_parts:
        raise ConfigError(
            f"train.batch_size {config.batch_size} cannot be split into {num_parts} equal parts "
            f"({processes.count} processes x {config.gradient_accumulation} accumulated)"
        )
    if config.precision == "fp16" and processes.device.type == "cpu":
        raise ConfigError("train.precision: fp16 needs a GPU; on a CPU use bf16 or no")
