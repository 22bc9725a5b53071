"""Saving and restoring all that a run needs to go on as if nothing had happened.

There is no generator, sampler or scheduler state: those are functions of (seed, step), and both
are here. Nothing is pickled.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from eligo.config.yaml import dump_yaml
from eligo.train.ema import WeightAverage
from eligo.train.log import Meter
from eligo.train.processes import Processes
from eligo.train.update import Updater
from eligo.train.weights import load_weights, read_tensors, save_weights
from eligo.untrusted import read_object


@dataclass
class Standing:
    """The little state of the loop itself."""

    step: int = 0
    """Steps done."""
    best_step: int | None = None
    best: dict[str, float] = field(default_factory=dict)
    """Validation metrics at the best step."""
    evaluations_since_best: int = 0


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
        (folder / "config.yaml").write_text(dump_yaml(record), "utf-8")
        state = folder / "state"
        state.mkdir()
        (state / "state.json").write_text(json.dumps(summary, indent=1), "utf-8")
        for name in self.updater.optimizers:
            tensors = self.updater.tensors(name)
            save_file(
                {key: value.cpu().contiguous() for key, value in tensors.items()},
                state / f"optimizer_{name}.safetensors",
            )
        if self.average is None:
            save_weights(folder, self.modules)
        else:
            save_weights(state, self.modules)
            with self.average.swapped():
                save_weights(folder, self.modules)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        state = folder / "state"
        summary = read_object(state / "state.json", "a checkpoint of this run")
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
