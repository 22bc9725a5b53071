"""A training run of a retrieval model. Defaults are the recipe of LAPS and SEPS.

AdamW, decay 1e-4, heads 2e-4 and given backbones a tenth of it, x 0.3 at epochs 9, 15, 20 and 25 of
30, clip 2, batch 128; in the first epoch all violations, the loss ramped from 0 to 1, then hardest
negatives. Departs from both in choosing the checkpoint on `dev`: they look at `test`.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.patches.config import EncodersConfig, RetrievalConfig
from eligo.patches.data.config import DataConfig, ScenesDataConfig
from eligo.scenes.config import SceneConfig
from eligo.train.config import SMOKE, OptimizerConfig, ScheduleConfig, TrainConfig


class PatchesTrainConfig(Config):
    """One training run."""

    task: Literal["patches.train"] = "patches.train"
    """What this file trains."""
    train: TrainConfig = TrainConfig(batch_size=128, clip_norm=2.0, monitor="rsum", mode="max")
    """The loop."""
    model: RetrievalConfig = RetrievalConfig()
    """What is trained."""
    data: DataConfig = ScenesDataConfig()
    """What it is trained on."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training pairs; sets train.total_steps. None: train.total_steps counts."""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=2e-4,
        weight_decay=1e-4,
        schedule=ScheduleConfig(
            kind="milestones", milestones=(9 / 30, 15 / 30, 20 / 30, 25 / 30), gamma=0.3
        ),
    )
    """One optimiser; given backbones learn at encoders.backbone_lr of its rate."""
    margin: float = Field(default=0.2, gt=0)
    """By how much a true pair must beat a false one."""
    ramp: float = Field(default=1 / 30, ge=0, le=1)
    """Share of all steps in which the loss grows from 0 to 1."""
    hardest_after: float = Field(default=1 / 30, ge=0, le=1)
    """Share of all steps in which every violation counts; then the hardest negatives only."""
    ratio_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on the share of kept patches (match.decision bernoulli)."""
    centre_heads: bool = False
    """Begin with heads that take the median patch and word of a batch to zero, and in every step
    draw the median patch back there, as weight decay would: else the room behind the objects comes
    to point one way, s_im is highest where it is seen, and it is kept rather than the objects."""
    see_steps: int = Field(default=0, ge=0)
    """First steps, in which the vision encoder learns what every patch shows (scenes only)."""

    @model_validator(mode="after")
    def _check(self) -> "PatchesTrainConfig":
        if self.train.gradient_accumulation > 1:
            raise ValueError(
                "train.gradient_accumulation: negatives come from the whole batch, which cannot be "
                "split in time; got "
                f"{self.train.gradient_accumulation}, expected 1; use more processes instead"
            )
        if self.train.batch_size < 2:
            raise ValueError(
                f"train.batch_size: got {self.train.batch_size}, expected at least 2: the other "
                "texts of a batch are what an image learns to be told apart from"
            )
        if self.ratio_weight and self.model.match.decision == "topk":
            raise ValueError(
                f"ratio_weight: got {self.ratio_weight} with model.match.decision topk, which "
                "keeps an exact share; expected 0, or decision bernoulli"
            )
        if isinstance(self.data, ScenesDataConfig):
            _check_scenes(self.data.scenes, self.model.encoders)
            if self.see_steps > self.train.total_steps:
                raise ValueError(f"see_steps: got {self.see_steps}, more than train.total_steps")
            return self
        if self.see_steps:
            raise ValueError("see_steps: only scenes say what every patch shows; expected 0")
        if self.model.match.dense and self.data.dense is None:
            raise ValueError("model.match.dense needs data.dense, a file of dense captions")
        return self

    def build(self) -> Any:
        """The task for the training loop."""
        from eligo.patches.training.task import PatchesTask

        return PatchesTask(self)

    def smoke(self) -> "PatchesTrainConfig":
        """Two steps on one's own files; scenes shrink, and the encoders with them."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        count = min(8, self.data.validation_images or 8)
        return self.replace(SMOKE | {"data.validation_images": count, "epochs": None})

    def tiny(self) -> "PatchesTrainConfig":
        """The same run on a few small scenes, with small random encoders."""
        small = {"width": 16, "layers": 1, "heads": 2}
        data = ScenesDataConfig(
            scenes=SceneConfig(height=56, width=56), train_images=16, validation_images=8
        )
        return self.replace(
            {
                "train.total_steps": 4, "train.batch_size": 4, "train.evaluate_every": 2,
                "train.checkpoint_every": 4, "train.precision": "no", "epochs": None,
                "see_steps": min(self.see_steps, 2),
                "ramp": 0.25, "hardest_after": 0.5,
                "data": data.model_dump(),
                "model.encoders": {
                    "vision": None, "text": None, "image_size": None,
                    "small_vision": {"image_size": 56, "patch_size": 4, **small},
                    "small_text": small, "embed_dim": 16,
                },
            }
        )  # fmt: skip


def _check_scenes(scenes: SceneConfig, encoders: EncodersConfig) -> None:
    size = encoders.small_vision.image_size if encoders.vision is None else encoders.image_size
    if size is not None and (scenes.height, scenes.width) != (size, size):
        raise ValueError(
            f"data.scenes: got {scenes.height} x {scenes.width} pixels, expected "
            f"{size} x {size}, what the vision encoder is shown"
        )
    if encoders.text is None and encoders.max_words < 16:
        raise ValueError(f"max_words: got {encoders.max_words}; the scenes' captions need 16")
