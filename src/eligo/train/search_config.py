"""What `search:` in a run's YAML says. Imports no torch."""

from typing import Annotated, Any

from pydantic import Field

from eligo.config import Config
from eligo.config.bounds import Seed


class RangeConfig(Config):
    """A range of numbers; of whole numbers if both ends are."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Sample the logarithm evenly."""


class SearchConfig(Config):
    """What `search:` in a run's YAML says."""

    trials: int = Field(default=20, ge=1)
    """Trials in all, over all workers and restarts."""
    space: dict[str, RangeConfig | list[Any]] = Field(min_length=1)
    """Dotted config keys, each with a range or a list of choices."""
    reduction: int = Field(default=3, ge=2)
    """Successive halving: one in so many trials goes on at evaluation 1, reduction, reduction^2."""
    seed: Seed = 0
    """Seed of the proposals."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """GPUs to share out among workers of `eligo search`; none: every worker sees all."""
    gpus_per_worker: int = Field(default=1, ge=1)
    """GPUs that each worker sees; a trial trains on the first of them."""
