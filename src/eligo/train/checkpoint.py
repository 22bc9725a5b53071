"""The folder of a run, and its checkpoints.

A run folder holds the config, `training.log`, metrics, checkpoints and the links `best` and `last`.
A checkpoint holds `<module>.safetensors` (the averaged weights if there is an average) and
`config.yaml`; its `state/` is needed only to resume. Generators, samplers and schedules have no
state: they are functions of (seed, step). A checkpoint is written under another name and renamed,
so a folder `step_...` is always complete. Nothing is pickled.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from eligo.config import Config
from eligo.config.yaml import dump_yaml, read_yaml
from eligo.errors import ConfigError, InputError, OutputError
from eligo.io.files import (
    LOCK,
    clear_unfinished,
    make_folder,
    remove_file,
    remove_folder,
    replace_link,
    write_text,
    writing_folder,
)
from eligo.io.locks import one_writer
from eligo.io.reading import parse_json, read_json, read_text, reading
from eligo.io.tensors import save_tensors
from eligo.renamed import new_name
from eligo.train.config import TrainConfig
from eligo.train.log import Meter
from eligo.train.optimization import Updater
from eligo.train.processes import Processes
from eligo.train.weights import WeightAverage, load_weights, read_tensors, save_weights

_MAY_CHANGE = {
    f"train.{key}"
    for key in (
        "name", "out", "max_minutes", "keep_checkpoints", "checkpoint_every", "init_from",
        "check_data", "smoke",
    )
} | {"data.num_workers", "data.cache_memory_gb"}  # fmt: skip
_CHECKPOINT = re.compile(r"step_\d{6,}")
_BEFORE_BEST = {"train.monitor", "train.mode"}  # may change until there is a best step


@dataclass
class TrainState:
    """Progress of the loop."""

    step: int = 0
    """Completed steps."""
    best_step: int | None = None
    best: dict[str, float] = field(default_factory=dict)
    """Validation metrics at the best step."""
    evaluations_since_best: int = 0
    evaluation_due: bool = False
    """The step is saved but not yet evaluated: a resumed run evaluates it first."""


@dataclass
class RunState:
    """Everything that changes during a run."""

    processes: Processes
    modules: dict[str, nn.Module]
    updater: Updater
    meter: Meter
    average: WeightAverage | None
    train_state: TrainState = field(default_factory=TrainState)

    def share_weights(self, *, buffers_only: bool) -> None:
        """Give every process the weights (or only the buffers) of the first one."""
        for module in self.modules.values():
            tensors = list(module.buffers()) + ([] if buffers_only else list(module.parameters()))
            for tensor in tensors:
                self.processes.share_(tensor)

    def summary(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the content of state.json; every process calls it."""
        return {
            "standing": asdict(self.train_state),
            "seed": record["train"]["seed"],
            "counters": self.updater.counters(),
            "meter": self.meter.state(),
        }

    def save(self, folder: Path, record: dict[str, Any], summary: dict[str, Any]) -> None:
        """Write a checkpoint into an empty folder."""
        write_text(folder / "config.yaml", dump_yaml(record))
        state = folder / "state"
        write_text(state / "state.json", json.dumps(summary, indent=1))
        for name in self.updater.optimizers:
            save_tensors(state / f"optimizer_{name}.safetensors", self.updater.tensors(name))
        if self.average is None:
            save_weights(folder, self.modules)
        else:
            save_weights(state, self.modules)
            with self.average.swapped():
                save_weights(folder, self.modules)

    def save_train_state(self, folder: Path) -> None:
        """Update the train state in the checkpoint of the evaluated step."""
        path = folder / "state" / "state.json"
        summary = json.loads(path.read_text("utf-8")) | {"standing": asdict(self.train_state)}
        write_text(path, json.dumps(summary, indent=1))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        state = folder / "state"
        summary = read_json(state / "state.json")
        with reading(state, "what `save` wrote; resume from an older checkpoint"):
            self.train_state = TrainState(**summary["standing"])
            self.meter.load(summary["meter"])
            self.updater.load(
                {
                    name: read_tensors(state / f"optimizer_{name}.safetensors")
                    for name in self.updater.optimizers
                },
                summary["counters"],
            )
        if self.average is None:
            load_weights(folder, self.modules)
        else:
            load_weights(state, self.modules)
            with self.average.swapped():
                load_weights(folder, self.modules)


class RunFolder:
    """Paths and file operations of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self._is_new = False  # whether this process began the run

    @contextmanager
    def locked(self, processes: Processes) -> Iterator[None]:
        """Lock the folder in the first process; raise in all of them if another run has it."""
        with ExitStack() as stack:
            refused = None
            if processes.is_main:
                try:
                    stack.enter_context(one_writer(self.path))
                except InputError as error:
                    refused = error
            refused = processes.of_first(refused)
            if refused is not None:
                raise refused
            yield

    def check(self, config: dict[str, Any], resume: bool) -> None:
        """Refuse to overwrite another run, or to continue a run with another config."""
        saved = self.path / "config.yaml"
        if not saved.exists() and not self.steps():
            return
        if not resume and self.is_replaced(config):
            return
        if not resume:
            raise InputError(
                f"{self.path} already holds a run; continue it with --resume, "
                "choose another --train.name, or remove the folder"
            )
        chosen = (self.path / "best").is_symlink()
        refuse_changes(saved, config, _MAY_CHANGE if chosen else _MAY_CHANGE | _BEFORE_BEST)

    def is_replaced(self, config: dict[str, Any]) -> bool:
        """Whether the folder holds a smoke run and this run is one."""
        saved = self.path / "config.yaml"
        if not config["train"].get("smoke") or not saved.is_file():
            return False
        return read_yaml(saved)[0].get("train", {}).get("smoke") is True

    def prepare(self, config: dict[str, Any], state: TrainState) -> None:
        """Write the config; remove unfinished files and metrics of steps to be repeated."""
        make_folder(self.checkpoints)
        self._is_new = not (self.path / "config.yaml").exists()
        clear_unfinished(self.path)
        write_text(self.path / "config.yaml", dump_yaml(config))
        if self.steps():
            self.settle(state.best_step, config["train"]["keep_checkpoints"])
        if self.metrics.exists():
            # The last line may be incomplete: a line counts only with its newline.
            last = (state.step, "train" if state.evaluation_due else "validation")
            try:
                lines = read_text(self.metrics).splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and _position(line) <= last]
            except (InputError, LookupError, TypeError):
                raise InputError(f"{self.metrics}: not written by a run; move it away") from None
            write_text(self.metrics, "".join(kept))

    def clear(self) -> None:
        """Remove everything but the lock."""
        for inside in list(self.path.iterdir()):
            if inside.is_dir() and not inside.is_symlink():
                remove_folder(inside)
            elif inside.name != LOCK:
                remove_file(inside)

    def abandon(self) -> None:
        """After a failure, remove the config of a new run without a checkpoint."""
        if self._is_new and not self.steps():
            with suppress(OSError):  # the first error matters more
                remove_file(self.path / "config.yaml")

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        names = (path.name for path in self.checkpoints.glob("step_*"))
        return sorted(int(name[5:]) for name in names if _CHECKPOINT.fullmatch(name))

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` steps."""
        return self.checkpoints / f"step_{step:06d}"

    @contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """Yield a folder that becomes the checkpoint of `step` if the block raises no error."""
        try:
            with writing_folder(self.checkpoint(step), marker="config.yaml") as temporary:
                yield temporary
        except OutputError as error:
            raise OutputError(f"{error}; then continue with --resume") from error

    def settle(self, best: int | None, keep: int) -> None:
        """Update the links `last` and `best`; keep the newest `keep` checkpoints and the best."""
        steps = self.steps()
        for name, step in (("last", steps[-1]), ("best", best)):
            if step is not None:
                replace_link(self.path / name, self.checkpoint(step).relative_to(self.path))
        for step in steps[:-keep]:
            if step != best:
                remove_folder(self.checkpoint(step))


def _position(line: str) -> tuple[int, str]:
    metrics = parse_json(line, "metrics.jsonl")
    return metrics["step"], metrics["split"]


def run_record(config: Config | None, train: TrainConfig) -> dict[str, Any]:
    """Return the content of config.yaml: the task's config, if it has one, with `train`."""
    whole = config.model_dump(mode="json") if config else {}
    return whole | {"train": train.model_dump(mode="json")}


def refuse_changes(saved: Path, config: dict[str, Any], may_change: set[str]) -> None:
    """Refuse to continue with another config than the saved one; the error lists the changes."""
    old, new = _flat(read_yaml(saved)[0]), _flat(config)
    task = str(old.get("task", old.get("config.task")))
    if task != str(new.get("task", new.get("config.task"))) and (renamed := new_name("task", task)):
        raise ConfigError(f"{saved}: from an older eligo (task {task}, now {renamed}); train anew")
    differing = [
        f"{key}: {old.get(key, 'nothing')} there, {new.get(key, 'nothing')} now"
        for key in sorted(old.keys() | new.keys())
        if key not in may_change and old.get(key) != new.get(key)
    ]
    if differing:
        raise ConfigError(
            f"cannot continue in {saved.parent} with another config ({'; '.join(differing)}); undo "
            "this, or choose another --train.name"
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
