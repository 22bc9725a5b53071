"""One loop for all families: optimisers, schedules, checkpoints and exact resume, search.

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.train.config import (
        AnnealConfig,
        OptimizerConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from eligo.train.data import counted_steps, epoch_batches, epoch_rows, steps_per_epoch
    from eligo.train.engine import ShardFailure, map_shards
    from eligo.train.loop import FitResult, fit
    from eligo.train.progress import ProgressBar
    from eligo.train.rng import mix, seed_everything
    from eligo.train.schedule import lr_factor
    from eligo.train.search import SearchResult, run_search
    from eligo.train.search_config import SearchConfig
    from eligo.train.source import Source, SourcedTask
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
    "SearchConfig": "search_config",
    "SearchResult": "search",
    "ShardFailure": "engine",
    "Source": "source",
    "SourcedTask": "source",
    "StepOutput": "task",
    "Task": "task",
    "TrainConfig": "config",
    "counted_steps": "data",
    "epoch_batches": "data",
    "epoch_rows": "data",
    "fit": "loop",
    "load_weights": "weights",
    "lr_factor": "schedule",
    "map_shards": "engine",
    "mix": "rng",
    "reset_optimizer": "update",
    "run_search": "search",
    "save_weights": "weights",
    "seed_everything": "rng",
    "steps_per_epoch": "data",
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
    "Source",
    "SourcedTask",
    "StepOutput",
    "Task",
    "TrainConfig",
    "counted_steps",
    "epoch_batches",
    "epoch_rows",
    "fit",
    "load_weights",
    "lr_factor",
    "map_shards",
    "mix",
    "reset_optimizer",
    "run_search",
    "save_weights",
    "seed_everything",
    "steps_per_epoch",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
