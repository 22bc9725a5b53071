"""The one training loop: `fit` trains a `Task` into a run folder and can be killed at any moment.

It is launched alone or by `accelerate launch -m eligo ...`, on a CPU or on GPUs. A step's batch is
split into (processes x gradient accumulation) equal parts that all count alike, so the same global
batch gives the same gradients however it is split. Everything random in a step is seeded from
(seed, step, part) and learning rates are functions of the step: besides weights and moments there
is hardly any state to save, and a resumed run repeats the unbroken one bit for bit on a CPU.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from eligo.config.nearest import did_you_mean
from eligo.errors import ConfigError, EligoError
from eligo.io.interrupts import Delayed, Interrupted, Launcher
from eligo.train.check import DataCheck
from eligo.train.checkpoint import RunState
from eligo.train.config import TrainConfig
from eligo.train.ema import WeightAverage
from eligo.train.log import Meter, MetricLog, logger
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

    @property
    def chosen(self) -> Path:
        """The best checkpoint; the last one where no evaluation gave a number."""
        return self.folder / ("last" if self.best_step is None else "best")


def fit(
    task: Task,
    config: TrainConfig,
    *,
    resume: bool = False,
    on_evaluate: OnEvaluate | None = None,
) -> FitResult:
    """Train until the steps, the patience or the minutes are used up.

    All data and settings are checked before the first step (`config.check_data`), and a step is
    saved before it is evaluated. SIGINT or SIGTERM (in the main thread) ends the run after the
    current step with a checkpoint and raises `Interrupted`, a KeyboardInterrupt; a second one ends
    it at once.

    With `resume`, continue from the newest checkpoint in the run folder, or start anew if there
    is none. `on_evaluate(step, metrics)` sees every evaluation and may return True to stop. The
    last step is evaluated however the run ends, so that it can be the best.
    """
    with RunFolder(config.folder).locked(Processes()), Delayed() as signals:
        loop = None
        try:
            with signals.at_once():  # there is nothing to save yet
                loop = _Loop(task, config, resume, on_evaluate, signals)
            result = loop.run()
        except BaseException as error:
            if loop is not None and loop.processes.is_main:
                loop.folder.abandon()
            if signals.number:  # whatever a library made of the signal
                raise Interrupted(signals.number, _stopped(loop, resume)) from error
            raise
        if signals.number:  # it came behind the last step
            raise Interrupted(signals.number, _stopped(loop, resume))
        return result


def _stopped(loop: "_Loop | None", resume: bool) -> str:
    """One line for who sent the signal."""
    if loop is None or loop.saved_step is None:
        return "stopped before the first checkpoint; the same command starts again"
    how = "the same command continues" if resume else "continue with --resume"
    return f"stopped at step {loop.saved_step}, which is saved; {how}"


class _Loop:
    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        resume: bool,
        on_evaluate: OnEvaluate | None,
        signals: Delayed,
    ) -> None:
        self.task, self.config, self.on_evaluate = task, config, on_evaluate
        self.signals, self.launcher = signals, Launcher()
        self.processes = processes = Processes()
        self.num_parts = processes.count * config.gradient_accumulation
        _check(config, processes, self.num_parts)
        self.record = run_record(task.config, config)
        self.folder = RunFolder(config.folder)
        self.folder.check(self.record, resume)
        if not resume:
            self._clear_trial()
        self.began = time.monotonic()
        self.saved_step = max(self.folder.steps(), default=None)

        task.to(processes.device)
        _check_monitor(config, task.metric_names())
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
        if config.check_data and self._ended() is None:
            check = DataCheck(processes)
            task.check(check)
            check.finish()

        processes.wait()  # all have read what the first one now tidies
        if processes.is_main:
            self.folder.prepare(
                self.record, self.standing.step, self.standing.best_step, config.keep_checkpoints,
                self.standing.evaluation_due,
            )  # fmt: skip
        self.log = MetricLog(self.folder.path, self.standing.step) if processes.is_main else None
        self.bar = ProgressBar(
            config.name, config.total_steps, self.standing.step, visible=processes.is_main
        )
        self.logged = (self.standing.step, self.began)

    def run(self) -> FitResult:
        """All the steps that are left."""
        standing = self.standing
        streams = self._streams()
        self._set_training(True)
        try:
            with self.bar:
                # A run that was killed between checkpoint and evaluation goes on there.
                stopped = standing.evaluation_due and self._evaluate()
                ended = "stopped" if stopped else self._ended()
                while ended is None:
                    self._step(streams)
                    ended = self._after_step()
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

    def _after_step(self) -> Ending | None:
        """Log, save, evaluate: a step is saved before it is evaluated, whatever comes then."""
        config, standing = self.config, self.standing
        step = standing.step
        logs = step == config.total_steps or step % config.log_every == 0
        if logs:
            self._write_metrics()
        number = self.processes.most(self.signals.number or self.launcher.signal())
        ended = self._ended(look_at_clock=logs)
        # The end is always evaluated: it may be the best, or all there is.
        standing.evaluation_due = self._is_scheduled() or (ended is not None and not number)
        if number or standing.evaluation_due or step % config.checkpoint_every == 0:
            self._save()
        if number:
            self.signals.number = number  # another process may have got it
            raise Interrupted(number)
        if standing.evaluation_due and self._evaluate():
            return "stopped"
        return self._ended(look_at_clock=logs) or ended

    def _is_scheduled(self) -> bool:
        step, config = self.standing.step, self.config
        return step == config.total_steps or step % config.evaluate_every == 0

    def _clear_trial(self) -> None:
        replaced = self.folder.is_replaced(self.record)
        self.processes.wait()  # all have looked
        if replaced and self.processes.is_main:
            self.folder.clear()
        self.processes.wait()

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

    def _evaluate(self) -> bool:
        """Evaluate the step that was just saved, remember a new best; returns whether to stop.

        An evaluation that only the clock brought about does not count against `patience`.
        """
        standing, config = self.standing, self.config
        metrics = self._measure()
        if self.log is not None:
            self.log.write(standing.step, "validation", metrics)
        sign = 1 if config.mode == "max" else -1
        best = sign * standing.best[config.monitor] if standing.best else -math.inf
        standing.evaluations_since_best += self._is_scheduled()
        if math.isnan(metrics[config.monitor]):
            logger.warning(
                "%s is NaN at step %d, which cannot be the best step", config.monitor, standing.step
            )
        if sign * metrics[config.monitor] > best:
            standing.evaluations_since_best = 0
            standing.best_step, standing.best = standing.step, metrics
        stop = self.on_evaluate is not None and self.on_evaluate(standing.step, metrics)
        standing.evaluation_due = False
        if self.processes.is_main:
            self.state.save_standing(self.folder.checkpoint(standing.step))
            self.folder.settle(standing.best_step, config.keep_checkpoints)
        self.processes.wait()
        return self.processes.of_first(stop)

    def _measure(self) -> dict[str, float]:
        """The task's metrics; an error says that the step is saved and how to go on."""
        self.state.share_weights(buffers_only=True)
        self._set_training(False)
        seed_everything(self.config.seed, _EVALUATION)
        average = self.state.average
        try:
            with (
                self.signals.at_once(),
                torch.no_grad(),
                self._autocast(),
                average.swapped() if average else nullcontext(),
            ):
                found = {name: float(value) for name, value in self.task.evaluate().items()}
            metrics = self.processes.of_first(found)
            _check_monitor(self.config, metrics)
        except EligoError as error:
            error.args = (f"{error}; {self._kept()}",)
            raise
        except Exception as error:
            error.add_note(self._kept())
            raise
        self._set_training(True)
        return metrics

    def _kept(self) -> str:
        return f"step {self.standing.step} is saved: continue with --resume, which evaluates it"

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


def _check_monitor(config: TrainConfig, names: Collection[str] | None) -> None:
    if names is not None and config.monitor not in names:
        raise ConfigError(
            f"train.monitor {config.monitor!r} is not among the validation metrics: "
            f"{', '.join(names)}{did_you_mean(config.monitor, names)}"
        )


def _check(config: TrainConfig, processes: Processes, num_parts: int) -> None:
    if config.batch_size % num_parts:
        raise ConfigError(
            f"train.batch_size {config.batch_size} cannot be split into {num_parts} equal parts "
            f"({processes.count} processes x {config.gradient_accumulation} accumulated)"
        )
    if config.precision == "fp16" and processes.device.type == "cpu":
        raise ConfigError("train.precision: fp16 needs a GPU; on a CPU use bf16 or no")
