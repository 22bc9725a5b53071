"""The embedded exam as a config: which parts, how long, on how much. Imports no torch."""

from typing import Any, Literal

from pydantic import Field

from benchmarks.pixels.variants import ARMS, PARTS, Arm, Part
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.pixels.config import PixelsTrainConfig


class ExamConfig(Config):
    """What `eligo pixels exam` trains and measures."""

    task: Literal["pixels.exam"] = "pixels.exam"
    """Which kind of config this is."""
    parts: tuple[Part, ...] = PARTS
    """twins (and noisy tags), binding, depth."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Arms that carry a must are trained once with each; the others with the first."""
    steps: int = Field(default=1500, ge=1)
    """Steps of every arm of twins and depth."""
    binding_steps: int = Field(default=2500, ge=1)
    """Steps of every arm of binding."""
    train_images: int = Field(default=4000, ge=1)
    """Scenes that every arm learns from."""
    validation_images: int = Field(default=500, ge=1)
    """Scenes that choose each arm's checkpoint."""
    test_images: int = Field(default=500, ge=2)
    """Scenes that arms are compared on."""
    evaluations: int = Field(default=3, ge=1)
    """Looks at the validation scenes in each run."""
    resamples: int = Field(default=2000, ge=10)
    """Of the bootstrap."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Other values of all arms' configs, by dotted key."""

    def quick(self) -> "ExamConfig":
        """The same exam in minutes on a CPU: the code runs, the numbers mean nothing."""
        tiny = {
            "encoder.dims": (8, 16, 24, 32), "encoder.depths": (1, 1, 1, 1),
            "head.channels": 16, "head.ham_channels": 16, "head.rank": 4, "text_dim": 32,
            "text.encoder.dim": 32, "train.batch_size": 4,
            "data.scenes.height": 48, "data.scenes.width": 64,
        }  # fmt: skip
        return self.replace(
            {
                "seeds": self.seeds[:2], "steps": min(self.steps, 2),
                "binding_steps": min(self.binding_steps, 2),
                "train_images": min(self.train_images, 8), "evaluations": 1,
                "validation_images": min(self.validation_images, 4),
                "test_images": min(self.test_images, 4), "resamples": min(self.resamples, 100),
                "changes": self.changes | tiny,
            }
        )  # fmt: skip

    def arms(self) -> dict[str, Arm]:
        """The arms of these parts."""
        return {name: arm for name, arm in ARMS.items() if arm.part in self.parts}

    def jobs(self) -> list[tuple[str, int]]:
        """Arm and seed of every run, musts first."""
        arms = self.arms()
        must = [(name, seed) for seed in self.seeds for name, arm in arms.items() if arm.must]
        return must + [(name, self.seeds[0]) for name, arm in arms.items() if not arm.must]

    def run(self, name: str, seed: int) -> PixelsTrainConfig:
        """The training of an arm."""
        arm = ARMS[name]
        steps = self.binding_steps if arm.part == "binding" else self.steps
        base = load_config(
            PixelsTrainConfig,
            "pixels/scenes",
            {
                "train.name": f"{name}_{seed}", "train.seed": seed, "train.total_steps": steps,
                "train.evaluate_every": max(1, steps // self.evaluations),
                "train.checkpoint_every": steps, "train.keep_checkpoints": 1,
                "data.train_images": self.train_images,
                "data.validation_images": self.validation_images,
                "data.test_images": self.test_images,
            },
        )  # fmt: skip
        # A preset lies under the arm's own modes, as on the command line.
        return base.replace(self.changes | arm.changes).replace(arm.sam())
