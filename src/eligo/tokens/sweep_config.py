"""What `eligo tokens sweep` compares, and by which questions."""

from typing import Any, Literal

from pydantic import Field

from eligo.config import Config
from eligo.config.bounds import Whole
from eligo.scenes.config import SceneConfig
from eligo.tokens.inputs_config import HostConfig, RandomHostConfig

FREE = {"methods", "plans", "budgets", "layer", "batch_size", "device"}
"""Keys that may change when a sweep goes on: they decide which arms there are, not what they are
asked."""


class SweepConfig(Config):
    """Methods and plans, budgets, and the questions that all of them get."""

    task: Literal["tokens.sweep"] = "tokens.sweep"
    """Which kind of config this is."""
    methods: tuple[str, ...] = ("random", "uniform", "pool", "tome", "divprune", "fastv", "oracle")
    """Training-free methods, with options behind a colon: `tome:rounds=8`."""
    plans: tuple[str, ...] = ()
    """Folders of plans, checkpoints or training runs, or names of shipped plans; each brings its
    own budgets."""
    budgets: tuple[Whole, ...] = (192, 64)
    """Vision tokens that a method keeps, one arm for each."""
    layer: int = Field(default=2, ge=1)
    """Where methods that work only inside the language model cut; others reduce before it."""
    split: Literal["validation", "test"] = "validation"
    """Which scenes: validation to choose by, test to report."""
    questions: int = Field(default=36, ge=1)
    """How many, the families in turn; the same for all arms."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    host: HostConfig = HostConfig()
    """The model that is pruned."""
    max_new_tokens: int = Field(default=4, ge=1)
    """Longest answer."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Training scenes on which the blind baseline is fitted."""
    batch_size: int = Field(default=12, ge=1)
    """Prompts in one call of `generate`."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""

    @property
    def asked(self) -> dict[str, Any]:
        """What all arms share; arms asked anything else cannot stand in one table."""
        return self.model_dump(mode="json", exclude={"task", *FREE})

    def smoke(self) -> "SweepConfig":
        """The same on 16 vision tokens of a random narrow host."""
        small = RandomHostConfig(image_size=56, layers=self.layer + 1)
        return self.replace(
            {
                "budgets": [9, 4], "questions": 6, "blind_scenes": 64,
                "scenes.height": 56, "scenes.width": 56,
                "host": {"random": small.model_dump()}, "plans": [], "device": "cpu",
            }
        )  # fmt: skip
