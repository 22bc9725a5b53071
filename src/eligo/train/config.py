"""Configs of the training loop and of the hyper-parameter search. Imports no torch."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed
from eligo.io.files import checked_name

_Decay = Annotated[float, Field(ge=0, lt=1)]
_MAX_GRID = 1000  # combinations


class ScheduleConfig(Config):
    """Learning-rate schedule; see `optimization.lr_factor`."""

    kind: Literal["constant", "linear", "cosine", "poly", "milestones", "legacy_poly"] = "cosine"
    """Shape after the warm-up; legacy_poly is DFormer's, which jumps at the end of the warm-up."""
    warmup: float = Field(default=0.0, ge=0)
    """Linear warm-up: a fraction of all steps if below 1, else a number of steps."""
    final_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, relative to the peak (linear, cosine)."""
    power: float = Field(default=0.9, gt=0)
    """Exponent of the polynomial decay."""
    milestones: tuple[float, ...] = ()
    """Fractions of all steps at which the learning rate is multiplied by gamma."""
    gamma: float = Field(default=0.3, gt=0, le=1)
    """Factor of each milestone."""

    @model_validator(mode="after")
    def _milestones_are_fractions(self) -> "ScheduleConfig":
        if (self.kind == "milestones") != bool(self.milestones):
            raise ValueError("kind: milestones and a list of milestones go together")
        if any(not 0 < milestone < 1 for milestone in self.milestones):
            raise ValueError(f"milestones are fractions of all steps, got {self.milestones}")
        return self

    def without_effect(self) -> dict[str, str]:
        """Keys of the other kinds."""
        kinds = {
            "final_ratio": ("linear", "cosine"),
            "power": ("poly", "legacy_poly"),
            "gamma": ("milestones",),
        }
        return {
            key: f"schedule.kind is {self.kind}, not {' or '.join(users)}"
            for key, users in kinds.items()
            if self.kind not in users
        }


class OptimizerConfig(Config):
    """One AdamW optimiser with its own schedule."""

    lr: float = Field(default=1e-4, ge=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay; biases, norms and what modules declare get none."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over time."""


class AnnealConfig(Config):
    """A scalar, such as a temperature, that changes linearly and then stays constant."""

    start: float = 1.0
    """Value at the first step."""
    end: float = 0.1
    """Value from anneal_fraction on."""
    anneal_fraction: float = Field(default=0.5, ge=0, le=1)
    """Part of the training over which the value changes."""

    def at(self, fraction: float) -> float:
        """T = start - (p/a)(start - end) for p < a, else end."""
        if fraction >= self.anneal_fraction:
            return self.end
        return self.start - fraction / self.anneal_fraction * (self.start - self.end)

    def without_effect(self) -> dict[str, str]:
        """The start of a constant value."""
        return {} if self.anneal_fraction else {"start": "anneal_fraction is 0"}


SMOKE: dict[str, Any] = {
    "train.total_steps": 2, "train.evaluate_every": 2, "train.checkpoint_every": 2,
    "train.log_every": 1, "train.max_minutes": None,
}  # fmt: skip
"""Changes for a smoke run: two steps, then an evaluation."""
SMOKE_BATCH = 8
"""Largest batch of a smoke run on files, so that it takes less than a minute on a CPU."""


class TrainConfig(Config):
    """One run of the loop. The optimisers belong to the family's own config."""

    name: str = "run"
    """Name of the run: its folder is out/name."""
    out: Path = Path("runs")
    """Folder of all runs."""
    seed: Seed = 0
    """Seed of everything random in the run."""
    total_steps: int = Field(default=1000, ge=1)
    """Optimiser steps of the whole run."""
    batch_size: int = Field(default=32, ge=1)
    """Examples in one step, over all processes and accumulated parts."""
    gradient_accumulation: int = Field(default=1, ge=1)
    """Parts into which each process splits its share of a batch, to save memory."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Autocast type of the step; no: float32."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest gradient norm of each optimiser's parameters; none: no clipping."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Evaluate and publish an exponential average of the weights with this decay."""
    max_nonfinite: int = Field(default=10, ge=1)
    """Stop after this many non-finite steps in a row; single ones are skipped and counted."""
    log_every: int = Field(default=20, ge=1)
    """Steps between two lines of metrics."""
    evaluate_every: int = Field(default=200, ge=1)
    """Steps between two evaluations on the validation split."""
    checkpoint_every: int = Field(default=200, ge=1)
    """Steps between two checkpoints; every evaluated step is saved too, before its evaluation."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints kept besides the best one."""
    monitor: str = "loss"
    """Validation metric that chooses the best checkpoint."""
    mode: Literal["min", "max"] = "min"
    """Whether the monitored metric should fall or rise."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a new best; none: never."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Stop after this many minutes, with an evaluation and a checkpoint (checked every log_every
    steps)."""
    init_from: Path | None = None
    """Folder of weights (any float type) to start from, with fresh optimisers and warm-up."""

    check_data: bool = True
    """Check all data and settings before the first step."""
    smoke: bool = Field(default=False, json_schema_extra={"flag": False})
    """Set by --smoke; the next smoke run replaces the folder."""

    @field_validator("name")
    @classmethod
    def _stays_in_out(cls, name: str) -> str:
        return checked_name(name)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out / self.name


class RangeConfig(Config):
    """A range of numbers; of whole numbers if both ends are whole."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Sample the logarithm evenly."""


class SearchConfig(Config):
    """The section `search:` of a run's YAML."""

    enable: bool | None = None
    """Whether this file is for `eligo search` (true) or for one training (false): the other command
    refuses it. None: both run it."""
    trials: int | None = Field(default=None, ge=1)
    """Trials in all, over all workers and restarts; none: each combination once if the space has
    only lists, else 20."""
    space: dict[str, RangeConfig | list[Any]] = Field(min_length=1)
    """Dotted config keys, each with a range or a list of choices."""
    reduction: int = Field(default=3, ge=2)
    """Successive halving: 1/reduction of the trials go on at evaluations 1, reduction, ...; where
    each combination is tried once, all go on."""
    seed: Seed = 0
    """Seed of the sampler."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """GPUs to divide among the workers of `eligo search`; none: every worker sees all."""
    gpus_per_worker: int = Field(default=1, ge=1)
    """GPUs of each worker; its trials train on all of them, each on an equal part of a batch."""

    def without_effect(self) -> dict[str, str]:
        """GPUs per worker without GPUs to divide."""
        if self.gpus or self.gpus_per_worker == 1:
            return {}
        return {"gpus_per_worker": "search.gpus names no GPUs to divide"}

    @model_validator(mode="after")
    def _grid_is_small(self) -> "SearchConfig":
        if self.is_grid and self.num_trials > _MAX_GRID:
            raise ValueError(
                f"space: got {self.num_trials} combinations, expected at most {_MAX_GRID} to try "
                "each; set trials to try some of them"
            )
        return self

    @property
    def num_combinations(self) -> int | None:
        """Number of combinations of all lists; None if there is a range."""
        lists = [choices for choices in self.space.values() if isinstance(choices, list)]
        return math.prod(map(len, lists)) if len(lists) == len(self.space) else None

    @property
    def num_trials(self) -> int:
        """Trials in all."""
        return self.trials or self.num_combinations or 20

    @property
    def is_grid(self) -> bool:
        """Whether each combination is tried once."""
        return self.num_trials == self.num_combinations
