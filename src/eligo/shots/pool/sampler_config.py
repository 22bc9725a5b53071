"""Which examples of a pool are candidates for a query. Imports no torch."""

from typing import Literal

from pydantic import Field

from eligo.config import Config
from eligo.config.bounds import Seed


class SamplerConfig(Config):
    """One sampler serves teaching, training and inference."""

    kind: Literal["random", "text", "image", "mix"] = "random"
    """random; text, image: the nearest by that view; mix: half random, a quarter text, the rest
    image."""
    num_candidates: int = Field(default=32, ge=1)
    """Candidates of a query; fewer where the pool has fewer."""
    max_similarity: float | None = Field(default=None, ge=-1, le=1)
    """Leave out examples whose cosine with the query is larger: near copies; none: keep all."""
    seed: Seed = 0
    """Draws depend on it and on the query's id only."""
