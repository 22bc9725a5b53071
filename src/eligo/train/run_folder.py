"""The folder of a run: config, metrics, checkpoints, and the links `best` and `last`.

A checkpoint holds `<module>.safetensors` (what to use: the averaged weights where an average is
kept) and `config.yaml`; its `state/` holds what only resuming needs. It is written under another
name and renamed, so that a folder called `step_...` is always whole.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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
from eligo.io.reading import parse_json, read_text
from eligo.train.config import TrainConfig
from eligo.train.processes import Processes

_MAY_CHANGE = {
    f"train.{key}"
    for key in (
        "name", "out", "max_minutes", "keep_checkpoints", "checkpoint_every", "init_from",
        "check_data", "smoke",
    )
}  # fmt: skip
_CHECKPOINT = re.compile(r"step_\d{6,}")  # others in the folder are not ours
_BEFORE_BEST = {"train.monitor", "train.mode"}  # nothing has been chosen by them yet


class RunFolder:
    """Paths and file operations of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self._is_ours = False  # whether this process began the run

    @contextmanager
    def locked(self, processes: Processes) -> Iterator[None]:
        """One run at a time writes here. The first process has the lock; without it, all end."""
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
        """Refuse to write over another run, or to continue a run under another config."""
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
        """Whether the folder holds a trial (--smoke) and this run is one."""
        saved = self.path / "config.yaml"
        if not config["train"].get("smoke") or not saved.is_file():
            return False
        return read_yaml(saved)[0].get("train", {}).get("smoke") is True

    def prepare(
        self, config: dict[str, Any], step: int, best: int | None, keep: int, due: bool = False
    ) -> None:
        """Write the config, finish or clear what was half done, drop metrics after `step`.

        `due`: the evaluation of `step` will be done again, so its metrics go too.
        """
        make_folder(self.checkpoints)
        self._is_ours = not (self.path / "config.yaml").exists()
        clear_unfinished(self.path)
        write_text(self.path / "config.yaml", dump_yaml(config))
        if self.steps():
            self.settle(best, keep)
        if self.metrics.exists():
            # The last line may be torn: a line counts only with its newline.
            last = (step, "train" if due else "validation")  # the two splits of a step, in order
            try:
                lines = read_text(self.metrics).splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and _place(line) <= last]
            except (InputError, LookupError, TypeError):
                raise InputError(
                    f"{self.metrics}: holds lines that no run wrote; move it away"
                ) from None
            write_text(self.metrics, "".join(kept))

    def clear(self) -> None:
        """Remove what a trial left, but for the lock."""
        for inside in list(self.path.iterdir()):
            if inside.is_dir() and not inside.is_symlink():
                remove_folder(inside)
            elif inside.name != LOCK:
                remove_file(inside)

    def abandon(self) -> None:
        """After a failure: a run that we began and that has no checkpoint may be started anew."""
        if self._is_ours and not self.steps():
            with suppress(OSError):  # the failure itself is what is to be told
                remove_file(self.path / "config.yaml")

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        names = (path.name for path in self.checkpoints.glob("step_*"))
        return sorted(int(name[5:]) for name in names if _CHECKPOINT.fullmatch(name))

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` steps."""
        return self.checkpoints / f"step_{step:06d}"

    @contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """A folder that becomes the checkpoint of `step` when the block ends well."""
        try:
            with writing_folder(self.checkpoint(step), marker="config.yaml") as temporary:
                yield temporary
        except OutputError as error:
            raise OutputError(f"{error}; then go on with --resume") from error

    def settle(self, best: int | None, keep: int) -> None:
        """What follows a new checkpoint: the links are set anew, then old checkpoints go."""
        self.link_all(best)
        self.drop_old(keep, best)

    def link_all(self, best: int | None) -> None:
        """Point `last` at the newest checkpoint and `best` at the best, atomically."""
        newest = self.steps()[-1]
        for name, step in (("last", newest), ("best", best)):
            if step is not None:
                replace_link(self.path / name, self.checkpoint(step).relative_to(self.path))

    def drop_old(self, keep: int, best: int | None) -> None:
        """Remove all checkpoints but the newest `keep` and the best."""
        for step in self.steps()[:-keep]:
            if step != best:
                remove_folder(self.checkpoint(step))


def _place(line: str) -> tuple[int, str]:
    metrics = parse_json(line, "metrics.jsonl")
    return metrics["step"], metrics["split"]


def run_record(config: Config | None, train: TrainConfig) -> dict[str, Any]:
    """What config.yaml holds: the run's whole config, or its training part if that is all."""
    whole = config.model_dump(mode="json") if config else {}
    return whole | {"train": train.model_dump(mode="json")}


def refuse_changes(saved: Path, config: dict[str, Any], may_change: set[str]) -> None:
    """Refuse to go on under another config than the saved one; say what differs."""
    old, new = _flat(read_yaml(saved)[0]), _flat(config)
    differing = [
        f"{key}: {_told(old, key)} there, {_told(new, key)} now"
        for key in sorted(old.keys() | new.keys())
        if key not in may_change and old.get(key) != new.get(key)
    ]
    if differing:
        raise ConfigError(
            f"cannot continue in {saved.parent} with another config ({'; '.join(differing)}); undo "
            "this, or choose another --train.name"
        )


def _told(flat: Mapping[str, Any], key: str) -> str:
    """A setting; a run of another version of eligo may not have it."""
    return str(flat[key]) if key in flat else "nothing"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
