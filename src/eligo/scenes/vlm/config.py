"""The size of a tiny LLaVA, its training and its examination. Imports no torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.scenes.config import FamilyWeights, SceneConfig, Split
from eligo.train.config import OptimizerConfig, TrainConfig


class VlmConfig(Config):
    """Size of the model."""

    image_size: int = Field(default=336, ge=1)
    """Pixels a side; a multiple of patch_size."""
    patch_size: int = Field(default=14, ge=1)
    """Pixels a side of a patch."""
    vision_layers: int = Field(default=6, ge=2)
    """Layers of the vision tower; its last but one feeds the language model."""
    vision_width: int = Field(default=192, ge=1)
    """Width of the vision tower; a multiple of heads."""
    layers: int = Field(default=12, ge=1)
    """Layers of the language model."""
    width: int = Field(default=192, ge=1)
    """Width of the language model; an even multiple of heads."""
    hidden: int = Field(default=640, ge=1)
    """Width of the feed-forward layers of the language model."""
    heads: int = Field(default=6, ge=1)
    """Attention heads, of both."""

    @model_validator(mode="after")
    def _check(self) -> "VlmConfig":
        for name, size, step, why in (
            ("image_size", self.image_size, self.patch_size, "patch_size"),
            ("vision_width", self.vision_width, self.heads, "heads"),
            ("width", self.width, 2 * self.heads, "2 x heads (positions rotate pairs)"),
        ):
            if size % step:
                raise ValueError(f"{name}: got {size}, expected a multiple of {step}, {why}")
        return self

    @property
    def grid(self) -> int:
        """Patches a side."""
        return self.image_size // self.patch_size


class VlmTrainConfig(Config):
    """One training run of the tiny LLaVA."""

    task: Literal["scenes.train-vlm"] = "scenes.train-vlm"
    """What this file trains."""
    train: TrainConfig
    """The loop."""
    model: VlmConfig = VlmConfig()
    """Size of the model."""
    scenes: SceneConfig = SceneConfig()
    """The world it learns."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """One optimiser for all."""
    questions: int = Field(default=22, ge=1)
    """Questions packed behind one image."""
    weights: FamilyWeights = (2, 2, 2, 3, 4, 2)
    """How often each family is asked: lookup, existence, count, comparison, relation, location."""
    vision_steps: int = Field(default=0, ge=0)
    """First steps that train the tower alone, on patch attributes."""
    vision_weight: float = Field(default=0.2, ge=0)
    """Weight of the patch-attribute loss afterwards."""
    phrase_weight: float = Field(default=0.5, ge=0)
    """Weight of what the last word of a phrase learns half-way up the language model."""
    validation_scenes: int = Field(default=512, ge=1)
    """Scenes of the validation split that choose `best`."""
    compile: bool = False
    """Compile the layers (needs a GPU to be worth it)."""

    @model_validator(mode="after")
    def _check(self) -> "VlmTrainConfig":
        size = self.model.image_size
        if (self.scenes.height, self.scenes.width) != (size, size):
            raise ValueError(
                f"scenes.height {self.scenes.height} and scenes.width {self.scenes.width}: "
                f"expected both to be {size}, model.image_size"
            )
        if min(self.weights) < 0 or not any(self.weights):
            raise ValueError(f"weights: got {self.weights}, expected none below 0 and one above")
        return self

    def build(self) -> Any:
        """The task for the training loop."""
        from eligo.scenes.vlm.train import VlmTask

        return VlmTask(self)

    def smoke(self) -> "VlmTrainConfig":
        """The same run, tiny."""
        small = VlmConfig(image_size=56, vision_width=32, vision_layers=2, layers=2, width=32,
                          hidden=64, heads=2)  # fmt: skip
        return self.model_copy(
            update={
                "train": self.train.model_copy(
                    update={"total_steps": 4, "batch_size": 4, "evaluate_every": 2,
                            "checkpoint_every": 2, "precision": "no", "init_from": None}
                ),
                "model": small,
                "scenes": self.scenes.model_copy(update={"height": 56, "width": 56}),
                "validation_scenes": 4,
                "questions": 3,
                "vision_steps": min(self.vision_steps, 2),
                "compile": False,
            }
        )  # fmt: skip


class VlmEvaluationConfig(Config):
    """What to ask, and whom."""

    task: Literal["scenes.evaluate-vlm"] = "scenes.evaluate-vlm"
    """Which kind of config this is."""
    model: Path | None = None
    """Folder of the model; none: the shipped one."""
    questions: int = Field(default=600, ge=6)
    """Questions in all, the same number from each of the six families."""
    batch_size: int = Field(default=1, ge=1)
    """Prompts in one call of `generate`; each holds one image and one question."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    split: Split = "test"
    """Which scenes."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Training scenes on which the blind baseline is fitted."""

    @property
    def resolved_device(self) -> str:
        """Where it runs: `auto` takes a GPU if there is one."""
        from eligo.pretrained.devices import resolve_device

        return str(resolve_device(self.device))
