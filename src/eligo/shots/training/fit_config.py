"""How a selector learns when it is fitted in Python. Imports no torch.

The documented learning rate, 1e-4, is for thousands of queries; own records are mostly fewer, so
the default here is larger and there is a least number of steps.
"""

from pydantic import Field

from eligo.config import Config
from eligo.config.bounds import Seed


class FitConfig(Config):
    """One fit."""

    num_epochs: int = Field(default=20, ge=1)
    """Times that every record is seen."""
    min_steps: int = Field(default=300, ge=1)
    """Steps at least, however few the records are."""
    batch_size: int = Field(default=64, ge=1)
    """Records in one step; fewer if there are fewer."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decoupled weight decay."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the records (whole groups) that chooses the best step."""
    patience: int = Field(default=5, ge=1)
    """Stop after so many evaluations without a new best."""
    seed: Seed = 0
    """Of weights, split, candidates and dropout."""
