"""Hyper-parameter search with Optuna: trials train in the usual loop, weak ones are pruned.

A grid (only lists, and as many trials as combinations) is queued whole and not pruned.

The search folder `<out>/<name>_search` holds the study (SQLite), one run folder per trial and
`best.yaml`. Any number of processes may work on it; starting the search again continues it. A
worker holds a file lock for its trial, which the kernel releases however the worker ends: a trial
that is marked as running but not locked was killed, and is queued again with the same values, to
resume from its checkpoints. No heartbeat is needed.

A worker may be several processes that `accelerate launch` started: they train each trial together,
and only the first one talks to Optuna.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from eligo.config import Config, save_config
from eligo.config.yaml import dump_yaml
from eligo.errors import ConfigError, EligoError, InputError, MissingExtraError, OutputError
from eligo.io.files import make_folder, remove_file, write_text
from eligo.io.locks import FileLock
from eligo.train.checkpoint import refuse_changes
from eligo.train.config import RangeConfig, SearchConfig, TrainConfig
from eligo.train.rng import mix

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger("eligo.train")

_POLL_SECONDS = 0.5
_STUDY = "study.db"
_NOT_SEARCHED = {f"train.{key}" for key in ("monitor", "mode", "out", "name")}
_MAY_CHANGE = {f"search.{key}" for key in ("enable", "trials", "gpus", "gpus_per_worker")}
_WAIT = "wait"


@dataclass(frozen=True)
class SearchResult:
    """Result of a search so far."""

    folder: Path
    num_trials: int
    """Trials completed or pruned."""
    best_value: float | None
    best_values: dict[str, Any]
    """Dotted config keys and their best values."""
    best_config: Path | None
    """The whole config as YAML, ready to train."""


def run_search(config: Config, search: SearchConfig) -> SearchResult:
    """Run trials, alone or with other workers, until all are done.

    `config` is the whole config of a run, with `train: TrainConfig` and `build() -> Task`.
    """
    from eligo.train.processes import Processes

    processes = Processes()
    with _storage_errors(_train_of(config)):
        worker = _Worker(config, search) if processes.is_main else None
        while True:
            changes = processes.of_first(worker and worker.take())
            if changes is None:
                return processes.of_first(worker and worker.result())
            if changes == _WAIT:  # all processes: none may wait long for the first one
                time.sleep(_POLL_SECONDS)
                continue
            try:
                outcome = _train(config.replace(changes), worker and worker.should_prune)
            except BaseException:
                if worker is not None:
                    worker.lock.release()  # the trial is queued again, as after a kill
                raise
            if worker is not None:
                worker.finish(*outcome)


def supervise_search(
    config: Config, search: SearchConfig, work: Callable[[], None]
) -> SearchResult:
    """Check a search, let `work` run its workers in other processes, and return the result."""
    with _storage_errors(_train_of(config)):
        worker = _Worker(config, search)
        work()
        return worker.result()


def _train(
    config: Config, should_prune: Callable[[int, float], bool] | None
) -> tuple[float | None, bool]:
    """Train a trial; return the best value, and whether all of it was trained."""
    from eligo.train.loop import fit

    task = cast(Any, config).build()
    train = _train_of(task.config or config)  # completed by the task: epochs are steps there

    def on_evaluate(step: int, metrics: Mapping[str, float]) -> bool:
        assert should_prune is not None
        return should_prune(math.ceil(step / train.evaluate_every), metrics[train.monitor])

    try:
        result = fit(task, train, resume=True, on_evaluate=should_prune and on_evaluate)
    except InputError:
        raise
    except EligoError as error:
        # Its values made it diverge; the search continues.
        logger.warning("%s failed: %s", train.name, error)
        return None, False
    return result.best.get(train.monitor), result.ended != "stopped"


class _Worker:
    """The part of a worker that talks to Optuna, in its first process."""

    def __init__(self, config: Config, search: SearchConfig) -> None:
        self.optuna = _import_optuna()
        self._state = self.optuna.trial.TrialState
        self.config, self.search = config, search
        self.train = _train_of(config)
        self.folder = _folder(self.train)
        _check_space(config, search)
        make_folder(self.folder)
        with self._locked():
            self._check_same()
            self.study = self.optuna.create_study(
                storage=self.optuna.storages.RDBStorage(
                    _sqlite_url(self.folder / _STUDY),
                    engine_kwargs={"connect_args": {"timeout": 60}},
                ),
                study_name="search",
                direction="maximize" if self.train.mode == "max" else "minimize",
                pruner=self._pruner(),
                load_if_exists=True,
            )
            if search.is_grid:
                for values in product(*search.space.values()):
                    params = dict(zip(search.space, values, strict=True))
                    self.study.enqueue_trial(params, skip_if_exists=True)

    def _pruner(self) -> Any:
        pruners = self.optuna.pruners
        if self.search.is_grid:
            return pruners.NopPruner()
        return pruners.SuccessiveHalvingPruner(
            min_resource=1, reduction_factor=self.search.reduction
        )

    def take(self) -> dict[str, Any] | str | None:
        """Lock the next trial and return its changes of the config.

        `"wait"`: other workers run the last ones, and may be killed. None: all are done.
        """
        with self._locked():
            unfinished = self._requeue_killed()
            trials = self.study.get_trials(deepcopy=False)
            waiting = [t for t in trials if t.state == self._state.WAITING]
            done = [t for t in trials if t.state in (self._state.COMPLETE, self._state.PRUNED)]
            if not waiting and len(done) + unfinished >= self.search.num_trials:
                return _WAIT if unfinished else None
            # A new sampler for each trial: workers must not propose the same values.
            self.study.sampler = self.optuna.samplers.TPESampler(
                seed=mix(self.search.seed, len(trials)) % 2**32
            )
            self.trial = trial = self.study.ask()
            for key, choices in self.search.space.items():
                _suggest(trial, key, choices)
            self.lock = FileLock.wait_for(self._lock_path(trial.number))
        first = trial.user_attrs.get("continues", trial.number)
        train = {"out": self.folder, "name": f"trial_{first:04d}", "keep_checkpoints": 1}
        values = (
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in trial.params.items()
        )
        logger.info("%s: %s", train["name"], ", ".join(values))
        return dict(trial.params) | {f"train.{key}": value for key, value in train.items()}

    def should_prune(self, evaluation: int, value: float) -> bool:
        """Report the monitored metric of the trial; return whether to stop it."""
        self.trial.report(value, evaluation)
        return self.trial.should_prune()

    def finish(self, value: float | None, trained: bool) -> None:
        """Record the result of the trial; without a value, or stopped early, it is pruned."""
        complete = trained and value is not None
        state = self._state.COMPLETE if complete else self._state.PRUNED
        with self._locked():
            self.study.tell(self.trial, value if complete else None, state=state)
            self.lock.release()
            if best := self._best():
                save_config(self.config.replace(best.params), self.folder / "best.yaml")

    def result(self) -> SearchResult:
        """The result so far."""
        done = (self._state.COMPLETE, self._state.PRUNED)
        best = self._best()
        return SearchResult(
            folder=self.folder,
            num_trials=len(self.study.get_trials(deepcopy=False, states=done)),
            best_value=best.value if best else None,
            best_values=dict(best.params) if best else {},
            best_config=self.folder / "best.yaml" if best else None,
        )

    def _best(self) -> "optuna.trial.FrozenTrial | None":
        complete = self.study.get_trials(deepcopy=False, states=(self._state.COMPLETE,))
        return self.study.best_trial if complete else None

    def _requeue_killed(self) -> int:
        """Queue trials of killed workers again; return how many trials are running."""
        alive = 0
        for trial in self.study.get_trials(deepcopy=False, states=(self._state.RUNNING,)):
            lock = FileLock.acquire(self._lock_path(trial.number))
            if lock is None:
                alive += 1
                continue
            lock.release()
            logger.info("trial %d was killed; it is queued again", trial.number)
            self.study.tell(trial.number, state=self._state.FAIL)
            first = trial.user_attrs.get("continues", trial.number)
            self.study.enqueue_trial(trial.params, user_attrs={"continues": first})
        return alive

    def _check_same(self) -> None:
        parts = {"search": self.search, "config": self.config}
        record = {name: part.model_dump(mode="json") for name, part in parts.items()}
        saved = self.folder / "search.yaml"
        if saved.exists():
            try:
                refuse_changes(saved, record, _MAY_CHANGE)
            except ConfigError:
                if self._has_begun():
                    raise
                remove_file(self.folder / _STUDY)  # the old config trained nothing
        write_text(saved, dump_yaml(record))

    def _has_begun(self) -> bool:
        """Return whether a trial has a checkpoint, or is running."""
        if any(self.folder.glob("trial_*/checkpoints/step_*")):
            return True
        locks = [FileLock.acquire(path) for path in (self.folder / "locks").glob("trial_*")]
        for lock in filter(None, locks):
            lock.release()
        return None in locks

    def _lock_path(self, number: int) -> Path:
        return self.folder / "locks" / f"trial_{number:04d}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one worker at a time read and change the study."""
        lock = FileLock.wait_for(self.folder / "locks" / "study")
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _storage_errors(train: TrainConfig) -> Iterator[None]:
    """Raise an OutputError if the study cannot be read or written (a full disk)."""
    optuna = _import_optuna()
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except (OperationalError, optuna.exceptions.StorageInternalError) as error:
        why = str(error.__cause__ or error).split("\n")[0]
        raise OutputError(
            f"{_folder(train) / _STUDY}: cannot be read or written ({why}); free some space, then "
            "start the search again: it continues"
        ) from error


def _folder(train: TrainConfig) -> Path:
    return train.out / f"{train.name}_search"


def _suggest(trial: "optuna.Trial", key: str, choices: RangeConfig | list[Any]) -> None:
    if isinstance(choices, list):
        trial.suggest_categorical(key, choices)
    elif isinstance(choices.low, int) and isinstance(choices.high, int):
        trial.suggest_int(key, choices.low, choices.high, log=choices.log)
    else:
        trial.suggest_float(key, choices.low, choices.high, log=choices.log)


def _check_space(config: Config, search: SearchConfig) -> None:
    """Check that both ends of every range and all choices give a valid config."""
    num_processes = search.gpus_per_worker if search.gpus else 1
    _check_batch(_train_of(config), num_processes, "")
    for key, choices in search.space.items():
        where = f"search.space.{key}: "
        if key in _NOT_SEARCHED:
            raise ConfigError(f"{where}cannot be searched over")
        if isinstance(choices, RangeConfig):
            _check_range(where, choices)
            choices = [choices.low, choices.high]
        if not choices:
            raise ConfigError(f"{where}got no choices, expected at least one")
        for value in choices:
            try:
                changed = config.replace({key: value})
            except ConfigError as error:
                raise ConfigError(where + str(error).removeprefix(f"--{key}: ")) from None
            _check_batch(_train_of(changed), num_processes, where)


def _check_batch(train: TrainConfig, num_processes: int, where: str) -> None:
    parts = num_processes * train.gradient_accumulation
    if num_processes > 1 and train.batch_size % parts:
        raise ConfigError(
            f"{where}train.batch_size: got {train.batch_size}, expected a multiple of {parts}, for "
            f"{num_processes} GPUs of each worker (search.gpus_per_worker) x "
            f"{train.gradient_accumulation} accumulated"
        )


def _check_range(where: str, choices: RangeConfig) -> None:
    low, high = choices.low, choices.high
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"{where}got low {low} and high {high}, expected low below high")
    if choices.log and low <= 0:
        raise ConfigError(f"{where}got low {low} with log: true, expected low above 0")


def _sqlite_url(path: Path) -> str:
    """Return the URL of a file for SQLAlchemy, with special characters escaped."""
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def _train_of(config: Config) -> TrainConfig:
    train = getattr(config, "train", None)
    if not (isinstance(train, TrainConfig) and hasattr(config, "build")):
        raise ConfigError(f"{type(config).__name__} cannot be trained, so it cannot be searched")
    return train


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
