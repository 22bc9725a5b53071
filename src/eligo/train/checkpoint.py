"""Saving and restoring all that a run needs to go on as if nothing had happened.

There is no generator, sampler or scheduler state: those are functions of (seed, step), and both
are here. Nothing is pickled.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from eligo.config.yaml import dump_yaml
from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.io.tensors import save_tensors
from eligo.train.ema import WeightAverage
from eligo.train.log import Meter
from eligo.train.processes import Processes
from eligo.train.update import Updater
from eligo.train.weights import load_weights, read_tensors, save_weights


@dataclass
class Standing:
    """The little state of the loop itself."""

    step: int = 0
    """Steps done."""
    best_step: int | None = None
    best: dict[str, float] = field(default_factory=dict)
    """Validation metrics at the best step."""
    evaluations_since_best: int = 0
    evaluation_due: bool = False
    """The step is saved and its evaluation is not finished: who resumes evaluates it first."""


@dataclass
class RunState:
    """Everything that changes during a run."""

    processes: Processes
    modules: dict[str, nn.Module]
    updater: Updater
    meter: Meter
    average: WeightAverage | None
    standing: Standing = field(default_factory=Standing)

    def share_weights(self, *, buffers_only: bool) -> None:
        """Give every process the weights (or only the buffers) of the first one."""
        for module in self.modules.values():
            tensors = list(module.buffers()) + ([] if buffers_only else list(module.parameters()))
            for tensor in tensors:
                self.processes.share_(tensor)

    def summary(self, record: dict[str, Any]) -> dict[str, Any]:
        """What goes into state.json; every process calls it."""
        return {
            "standing": asdict(self.standing),
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

    def save_standing(self, folder: Path) -> None:
        """Write what an evaluation changed into the checkpoint of its step; weights stay."""
        path = folder / "state" / "state.json"
        summary = json.loads(path.read_text("utf-8")) | {"standing": asdict(self.standing)}
        write_text(path, json.dumps(summary, indent=1))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        state = folder / "state"
        summary = read_json(state / "state.json")
        with reading(state, "what `save` wrote; resume from an older checkpoint"):
            self.standing = Standing(**summary["standing"])
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
