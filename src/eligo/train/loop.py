"""The training loop of all families: `fit` trains a `Task` into a run folder.

It runs in one process or under `accelerate launch -m eligo ...`, on a CPU or on GPUs. The batch of
a step is split into (processes x gradient accumulation) equal parts, so the gradients do not depend
on the split. Random numbers are seeded from (seed, step, part) and learning rates are functions of
the step, so a run that was killed and resumed repeats the unbroken one bit for bit on a CPU.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from eligo.config.problems import did_you_mean
from eligo.errors import ConfigError, EligoError
from eligo.io.interrupts import Delayed, Interrupted, Launcher
from eligo.train.check import DataCheck
from eligo.train.checkpoint import RunFolder, RunState, run_record
from eligo.train.config import TrainConfig
from eligo.train.data import killed_worker
from eligo.train.log import Meter, MetricLog, logger
from eligo.train.optimization import Updater
from eligo.train.processes import Processes
from eligo.train.progress import ProgressBar
from eligo.train.rng import seed_everything
from eligo.train.run_log import RunLog, record_messages
from eligo.train.task import Progress, Task
from eligo.train.weights import WeightAverage, load_weights

Ending = Literal["total_steps", "patience", "max_minutes", "stopped"]
OnEvaluate = Callable[[int, Mapping[str, float]], bool]

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FALLING = ("loss", "_rank")  # ends of the names of metrics of which less is better
_AFTER_STEP, _EVALUATION = -1, -2  # in seeds, in place of the part or the step


@dataclass(frozen=True)
class FitResult:
    """The result of `fit`."""

    folder: Path
    """The run folder; `best` and `last` in it are checkpoints."""
    ended: Ending
    """Why it ended; `stopped`: by `on_evaluate`."""
    last_step: int
    best_step: int | None
    best: dict[str, float]
    """Validation metrics of the best checkpoint."""
    skipped: int
    """Steps skipped because loss or gradients were not finite."""

    @property
    def chosen(self) -> Path:
        """The best checkpoint; the last one if no evaluation gave a number."""
        return self.folder / ("last" if self.best_step is None else "best")


def fit(
    task: Task,
    config: TrainConfig,
    *,
    resume: bool = False,
    on_evaluate: OnEvaluate | None = None,
) -> FitResult:
    """Train until the steps, the patience or the minutes of the config are used up.

    All data and settings are checked before the first step (`config.check_data`), and a step is
    saved before it is evaluated. SIGINT or SIGTERM (in the main thread) ends the run after the
    current step with a checkpoint and raises `Interrupted`; a second one ends it at once.

    With `resume`, continue from the newest checkpoint in the run folder, if there is one.
    `on_evaluate(step, metrics)` is called after every evaluation and may return True to stop. The
    last step is always evaluated, so that it can be the best.
    """
    with (
        record_messages() as run_log,
        RunFolder(config.folder).locked(Processes()),
        Delayed() as signals,
    ):
        loop = None
        try:
            with signals.at_once():  # there is nothing to save yet
                loop = _Loop(task, config, resume, on_evaluate, signals, run_log)
            result = loop.run()
        except BaseException as error:
            if loop is not None and loop.processes.is_main:
                loop.folder.abandon()
            if signals.number:  # whatever exception a library turned the signal into
                raise Interrupted(signals.number, _stopped(loop, resume)) from error
            if (killed := killed_worker(error)) is not None:
                raise killed from error
            raise
        finally:
            run_log.end_run()
        if signals.number:  # it came after the last step
            raise Interrupted(signals.number, _stopped(loop, resume))
        return result


def _first_line(config: TrainConfig, saved_step: int | None) -> str:
    if saved_step is None:
        return f"run {config.name} starts"
    return f"run {config.name} is resumed after step {saved_step}"


def _stopped(loop: "_Loop | None", resume: bool) -> str:
    """The message after a signal."""
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
        run_log: RunLog,
    ) -> None:
        self.task, self.config, self.on_evaluate = task, config, on_evaluate
        self.signals, self.launcher, self.run_log = signals, Launcher(), run_log
        self.processes = processes = Processes()
        self.num_parts = processes.count * config.gradient_accumulation
        _check(config, processes, self.num_parts)
        self.record = run_record(task.config, config)
        self.folder = RunFolder(config.folder)
        self.folder.check(self.record, resume)
        replaces = not resume and self.folder.is_replaced(self.record)
        self.began = time.monotonic()
        self.saved_step = None if replaces else max(self.folder.steps(), default=None)

        task.to(processes.device)
        _check_monitor(config, task.metric_names())
        if config.init_from is not None and self.saved_step is None:
            load_weights(config.init_from, task.modules)
        self.run_state = RunState(
            processes=processes,
            modules=task.modules,
            updater=Updater(task, config, processes),
            meter=Meter(processes),
            average=None,
        )
        self.run_state.share_weights(buffers_only=False)
        if config.ema_decay is not None:
            self.run_state.average = WeightAverage(task.modules, config.ema_decay)
        if self.saved_step is not None:
            self.run_state.load(self.folder.checkpoint(self.saved_step))
        self.train_state = self.run_state.train_state
        if config.check_data and self._ended() is None:
            check = DataCheck(processes)
            task.check(check)
            check.finish()

        processes.wait()  # all have read what the first one now changes
        if processes.is_main:
            if replaces:
                self.folder.clear()
            self.folder.prepare(self.record, self.train_state)
            run_log.open(self.folder.path, _first_line(config, self.saved_step))
        self.log = MetricLog(self.folder.path, self.train_state.step) if processes.is_main else None
        self.bar = ProgressBar(
            config.name, config.total_steps, self.train_state.step, visible=processes.is_main
        )
        self.logged = (self.train_state.step, self.began)

    def run(self) -> FitResult:
        """Do the remaining steps."""
        state = self.train_state
        streams = self._streams()
        self._set_training(True)
        try:
            with self.bar:
                # A run that was killed between checkpoint and evaluation continues here.
                stopped = state.evaluation_due and self._evaluate()
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
        if self.processes.is_main:
            best = "no best step" if state.best_step is None else f"best step {state.best_step}"
            self.run_log.write(f"ended at step {state.step} ({ended}), {best}")
        return FitResult(
            folder=self.folder.path,
            ended=ended,
            last_step=state.step,
            best_step=state.best_step,
            best=state.best,
            skipped=self.run_state.updater.check(state.step),
        )

    def _after_step(self) -> Ending | None:
        """Log, save and evaluate; a step is saved before it is evaluated."""
        config, state = self.config, self.train_state
        step = state.step
        logs = step == config.total_steps or step % config.log_every == 0
        if logs:
            self._write_metrics()
        number = self.processes.most(self.signals.number or self.launcher.signal())  # a signal
        ended = self._ended(check_time=logs)
        # The last step is always evaluated: it may be the best.
        state.evaluation_due = self._is_scheduled() or (ended is not None and not number)
        if number or state.evaluation_due or step % config.checkpoint_every == 0:
            self._save()
        if number:
            self.signals.number = number  # it may have reached another process
            raise Interrupted(number)
        if state.evaluation_due and self._evaluate():
            return "stopped"
        return self._ended(check_time=logs) or ended

    def _is_scheduled(self) -> bool:
        step, config = self.train_state.step, self.config
        return step == config.total_steps or step % config.evaluate_every == 0

    def _streams(self) -> list[Iterator[Any]]:
        # For the task, an accumulated part is like the share of a process.
        first = self.processes.index * self.config.gradient_accumulation
        self.parts = range(first, first + self.config.gradient_accumulation)
        return [
            self.task.batches(self.train_state.step, part, self.num_parts, self.processes.device)
            for part in self.parts
        ]

    def _step(self, streams: list[Iterator[Any]]) -> None:
        config, run_state, step = self.config, self.run_state, self.train_state.step
        progress = Progress(step, config.total_steps)
        for part, stream in zip(self.parts, streams, strict=True):
            batch = next(stream, None)
            if batch is None:
                raise EligoError(f"the task's batches ended at step {step} of {config.total_steps}")
            seed_everything(config.seed, step, part)
            with self._autocast():
                output = self.task.step(batch, progress)
            loss = run_state.updater.backward(output)
            losses = {f"loss/{name}": value for name, value in output.losses.items()}
            run_state.meter.add({"loss": loss} | losses | output.metrics, output.weight)
        norms = run_state.updater.step(step)
        run_state.meter.add({f"gradient_norm/{name}": norm for name, norm in norms.items()})
        if run_state.average is not None:
            run_state.average.update(step)
        seed_everything(config.seed, step, _AFTER_STEP)
        self.task.after_step(progress, run_state.updater.optimizers)
        self.train_state.step = step + 1

    def _write_metrics(self) -> None:
        step, now = self.train_state.step, time.monotonic()
        values = self.run_state.meter.means()
        loss = f"loss {values.get('loss', math.nan):.4g}"
        skipped = self.run_state.updater.check(step)
        if self.log is not None:
            last_step, last_time = self.logged
            self.logged = (step, now)
            rates = self.run_state.updater.rates(step - 1)
            values |= {f"lr/{name}": rate for name, rate in rates.items()}
            values |= {
                "skipped": skipped,
                "steps_per_second": (step - last_step) / max(1e-9, now - last_time),
                "seconds": now - self.began,
            }
            self.log.write(step, "train", values)
            shown = ", ".join(f"{rate:.3g} ({name})" for name, rate in rates.items())
            parts = f"{loss}{_listed_losses(values)}"
            self.run_log.write(f"step {step}/{self.config.total_steps}, {parts}, lr {shown}")
        self.bar.update(step, loss)

    def _evaluate(self) -> bool:
        """Evaluate the step that was just saved, record a new best, and return whether to stop.

        An evaluation because of `max_minutes` does not count against `patience`.
        """
        state, config = self.train_state, self.config
        metrics = self._measure()
        if self.log is not None:
            self.log.write(state.step, "validation", metrics)
        sign = 1 if config.mode == "max" else -1
        best = sign * state.best[config.monitor] if state.best else -math.inf
        state.evaluations_since_best += self._is_scheduled()
        if math.isnan(metrics[config.monitor]):
            logger.warning(
                "%s is NaN at step %d, which cannot be the best step", config.monitor, state.step
            )
        is_best = sign * metrics[config.monitor] > best
        if is_best:
            state.evaluations_since_best = 0
            state.best_step, state.best = state.step, metrics
        if self.processes.is_main:
            note = ", the best so far" if is_best else ""
            value = metrics[config.monitor]
            self.run_log.write(f"step {state.step}, validation {config.monitor} {value:.4g}{note}")
        stop = self.on_evaluate is not None and self.on_evaluate(state.step, metrics)
        state.evaluation_due = False
        if self.processes.is_main:
            self.run_state.save_train_state(self.folder.checkpoint(state.step))
            self.folder.settle(state.best_step, config.keep_checkpoints)
        self.processes.wait()
        return self.processes.of_first(stop)

    def _measure(self) -> dict[str, float]:
        """Return the task's metrics; errors also say that the step is saved and how to continue."""
        self.run_state.share_weights(buffers_only=True)
        self._set_training(False)
        seed_everything(self.config.seed, _EVALUATION)
        average = self.run_state.average
        try:
            with (
                self.signals.at_once(),
                torch.no_grad(),
                self._autocast(),
                average.swapped() if average else nullcontext(),
            ):
                values = {name: float(value) for name, value in self.task.evaluate().items()}
            metrics = self.processes.of_first(values)
            _check_monitor(self.config, metrics)
        except EligoError as error:
            error.args = (f"{error}; {self._saved_note()}",)
            raise
        except Exception as error:
            error.add_note(self._saved_note())
            raise
        self._set_training(True)
        return metrics

    def _saved_note(self) -> str:
        return f"step {self.train_state.step} is saved: continue with --resume, which evaluates it"

    def _ended(self, check_time: bool = False) -> Ending | None:
        config, state = self.config, self.train_state
        if state.step >= config.total_steps:
            return "total_steps"
        if config.patience is not None and state.evaluations_since_best >= config.patience:
            return "patience"
        if check_time and config.max_minutes is not None:
            minutes = (time.monotonic() - self.began) / 60
            if self.processes.of_first(minutes >= config.max_minutes):
                return "max_minutes"
        return None

    def _save(self) -> None:
        state = self.train_state
        if state.step == self.saved_step:
            return
        self.run_state.share_weights(buffers_only=True)
        summary = self.run_state.summary(self.record)
        if self.processes.is_main:
            with self.folder.writing(state.step) as folder:
                self.run_state.save(folder, self.record, summary)
            self.folder.settle(state.best_step, self.config.keep_checkpoints)
        self.saved_step = state.step
        self.processes.wait()

    def _autocast(self) -> torch.autocast:
        precision = self.config.precision
        return torch.autocast(
            self.processes.device.type, _DTYPES[precision], enabled=precision != "no"
        )

    def _set_training(self, training: bool) -> None:
        for module in self.task.modules.values():
            module.train(training)


def _listed_losses(values: Mapping[str, float]) -> str:
    """Return the parts of a loss, unweighted ones (`..._loss`) if the task logs them."""
    raw = {name: value for name, value in values.items() if name.endswith("_loss")}
    named = {name[5:]: value for name, value in values.items() if name.startswith("loss/")}
    parts = raw or named
    if len(parts) < 2:
        return ""
    return f" ({', '.join(f'{name} {value:.4g}' for name, value in parts.items())})"


def _check_monitor(config: TrainConfig, names: Collection[str] | None) -> None:
    if names is not None and config.monitor not in names:
        raise ConfigError(
            f"train.monitor {config.monitor!r} is not among the validation metrics: "
            f"{', '.join(names)}{did_you_mean(config.monitor, names)}"
        )
    if config.mode == "max" and config.monitor.split("/")[0].endswith(_FALLING):
        raise ConfigError(
            f"train.mode: got max with train.monitor {config.monitor}, which should fall; expected "
            "--train.mode min"
        )


def _check(config: TrainConfig, processes: Processes, num_parts: int) -> None:
    if config.batch_size % num_parts:
        raise ConfigError(
            f"train.batch_size {config.batch_size} cannot be split into {num_parts} equal parts "
            f"({processes.count} processes x {config.gradient_accumulation} accumulated)"
        )
    if config.precision == "fp16" and processes.device.type == "cpu":
        raise ConfigError("train.precision: fp16 needs a GPU; on a CPU use bf16 or no")
