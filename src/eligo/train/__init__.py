"""One loop for all families: optimisers, schedules, checkpoints and exact resume, search.

Names are imported on first use: configs and `--help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eligo.train.config import (
        AnnealConfig,
        OptimizerConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from eligo.train.data import epoch_batches
    from eligo.train.engine import ShardFailure, map_shards
    from eligo.train.loop import FitResult, fit
    from eligo.train.progress import ProgressBar
    from eligo.train.rng import mix, seed_everything
    from eligo.train.schedule import lr_factor
    from eligo.train.search import SearchConfig, SearchResult, run_search
    from eligo.train.task import OptimizerSpec, Progress, StepOutput, Task
    from eligo.train.update import reset_optimizer
    from eligo.train.weights import load_weights, save_weights

_HOME = {
    "AnnealConfig": "config",
    "FitResult": "loop",
    "OptimizerConfig": "config",
    "OptimizerSpec": "task",
    "Progress": "task",
    "ProgressBar": "progress",
    "ScheduleConfig": "config",
    "SearchConfig": "search",
    "SearchResult": "search",
    "ShardFailure": "engine",
    "StepOutput": "task",
    "Task": "task",
    "TrainConfig": "config",
    "epoch_batches": "data",
    "fit": "loop",
    "load_weights": "weights",
    "lr_factor": "schedule",
    "map_shards": "engine",
    "mix": "rng",
    "reset_optimizer": "update",
    "run_search": "search",
    "save_weights": "weights",
    "seed_everything": "rng",
}
__all__ = [
    "AnnealConfig",
    "FitResult",
    "OptimizerConfig",
    "OptimizerSpec",
    "Progress",
    "ProgressBar",
    "ScheduleConfig",
    "SearchConfig",
    "SearchResult",
    "ShardFailure",
    "StepOutput",
    "Task",
    "TrainConfig",
    "epoch_batches",
    "fit",
    "load_weights",
    "lr_factor",
    "map_shards",
    "mix",
    "reset_optimizer",
    "run_search",
    "save_weights",
    "seed_everything",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"eligo.train.{_HOME[name]}"), name)
    raise AttributeError(f"module 'eligo.train' has no attribute {name!r}")
