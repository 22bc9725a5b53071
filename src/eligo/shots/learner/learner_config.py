"""A training run of the exam's in-context learner."""

from typing import Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.scenes.config import SceneConfig, VlmConfig
from eligo.train.config import AnnealConfig, OptimizerConfig, TrainConfig


class LearnerConfig(Config):
    """A small LLaVA that learns nonce words from examples in its prompt."""

    task: Literal["shots.train-learner"] = "shots.train-learner"
    """What this file trains."""
    train: TrainConfig
    """The loop."""
    model: VlmConfig = VlmConfig(
        image_size=112, vision_layers=4, vision_width=96, layers=9, width=160, hidden=448, heads=4
    )
    """3.5 million parameters: 6.9 MB in half precision. Deep rather than wide: what an example
    shows, what its word means, what the question's words mean, which object that is and what is
    asked of it are five steps, one upon the other."""
    scenes: SceneConfig = SceneConfig(
        height=112, width=112, min_objects=4, max_objects=6, decoys=0, repeats=False,
        radii=(0.06, 0.09, 0.125),
    )  # fmt: skip
    """The world; small images, so few and large objects."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """One optimiser for all."""
    vision_steps: int = Field(default=0, ge=0)
    """First steps that train the tower alone, on patch attributes."""
    vision_weight: float = Field(default=0.2, ge=0)
    """Weight of the patch-attribute loss afterwards."""
    word_weight: AnnealConfig = AnnealConfig(start=1.0, end=0.2, anneal_fraction=0.8)
    """Weight of the read-outs on the way: what an example shows, what its word means, what a
    question's words mean, which object that is."""
    plain: AnnealConfig = AnnealConfig(start=0.8, end=0.1, anneal_fraction=0.3)
    """Share of lessons with plain words: known words first, then nonce words."""
    unclear: float = Field(default=0.25, ge=0, le=1)
    """Share of examples that are left as they were drawn: some of them could mean two things."""
    compile: bool = False
    """Compile the layers (needs a GPU to be worth it)."""
    validation_lessons: int = Field(default=512, ge=1)
    """Lessons of the validation split that choose `best`."""

    @model_validator(mode="after")
    def _check(self) -> "LearnerConfig":
        size = self.model.image_size
        if (self.scenes.height, self.scenes.width) != (size, size):
            raise ValueError(
                f"scenes.height {self.scenes.height} and scenes.width {self.scenes.width}: "
                f"expected both to be {size}, model.image_size"
            )
        if self.scenes.min_objects < 4:
            raise ValueError(
                f"scenes.min_objects: got {self.scenes.min_objects}, expected at least 4: a "
                "question's scene holds four combinations of two attributes"
            )
        return self

    def smoke(self) -> "LearnerConfig":
        """The same run, tiny."""
        changes = {
            "model": {
                "image_size": 56, "vision_width": 32, "vision_layers": 2, "layers": 4, "width": 32,
                "hidden": 64, "heads": 2,
            },
            "scenes": {"height": 56, "width": 56},
            "train": {
                "total_steps": 4, "batch_size": 4, "evaluate_every": 2, "checkpoint_every": 2,
                "precision": "no", "init_from": None, "max_minutes": None,
            },
            "validation_lessons": 8,
            "compile": False,
            "vision_steps": min(self.vision_steps, 2),
        }  # fmt: skip
        return self.replace(changes)
