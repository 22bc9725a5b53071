"""What to count of which scenes. Imports no torch."""

from typing import Literal

from pydantic import Field

from eligo.config import Config
from eligo.scenes.config import SceneConfig


class StatsConfig(Config):
    """What to count."""

    task: Literal["scenes.stats"] = "scenes.stats"
    """Which kind of config this is."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    train: int = Field(12_000, ge=1)
    """Training scenes, on which the blind baseline is fitted."""
    validation: int = Field(4000, ge=1)
    """Validation scenes, on which everything is measured."""
    questions: int = Field(16, ge=1, le=256)
    """Questions on each scene."""
