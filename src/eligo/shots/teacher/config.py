"""How queries are labelled. Imports no torch."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from eligo.config import Config
from eligo.config.bounds import Seed
from eligo.shots.hosts.config import ShotsHostConfig
from eligo.shots.pool.sampler_config import SamplerConfig

Objective = Literal["gain", "actual", "logprob"]


class TeachConfig(Config):
    """One labelling of queries."""

    task: Literal["shots.teach"] = "shots.teach"
    """What this file does."""
    data: Path = Path("embedded")
    """Folder that `eligo shots embed` wrote: pool and queries."""
    out: Path = Path("taught")
    """Folder to write records and scores to; an unfinished one is gone on with."""
    sampler: SamplerConfig = SamplerConfig()
    """Which examples are tried."""
    host: ShotsHostConfig = ShotsHostConfig()
    """The model that is asked."""
    objective: Objective = "logprob"
    """What a pick is worth: gain and actual in probability, logprob in mean log-probability."""
    shots: int = Field(default=6, ge=1)
    """Examples in a list."""
    beam: int = Field(default=5, ge=1)
    """Lists kept at each step."""
    num_queries: int | None = Field(default=None, ge=1)
    """Label so many queries, drawn by seed; none: all."""
    shard_size: int = Field(default=256, ge=1)
    """Queries that are written together."""
    seed: Seed = 0
    """Of the draw of queries."""
    engine: Literal["local", "ray"] = "local"
    """In this process, or on workers of Ray."""
    num_workers: int = Field(default=1, ge=1)
    """Workers of Ray."""
    check_data: bool = True
    """Look at all examples and queries before the first call of the model; off: start at once."""
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """GPUs that each of them takes."""
