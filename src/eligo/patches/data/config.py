"""Where captioned images come from. Imports no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.scenes.config import SceneConfig


class ScenesDataConfig(Config):
    """Scenes of the embedded world, painted on the device before the first step."""

    kind: Literal["scenes"] = "scenes"
    """Where images and captions come from."""
    scenes: SceneConfig = SceneConfig(height=168, width=168)
    """The world; as large as the vision encoder's images."""
    train_images: int = Field(default=65536, ge=1)
    """Scenes to learn from."""
    validation_images: int = Field(default=512, ge=1)
    """Scenes that choose the checkpoint, always the same."""
    captions_per_image: int = Field(default=4, ge=1)
    """Sparse captions drawn for every scene."""
    captions_per_step: int = Field(default=2, ge=1)
    """How many of them a step uses."""

    @model_validator(mode="after")
    def _check(self) -> "ScenesDataConfig":
        if self.captions_per_step > self.captions_per_image:
            raise ValueError(
                f"captions_per_step: got {self.captions_per_step}, expected at most "
                f"captions_per_image, {self.captions_per_image}"
            )
        return self


class KarpathyDataConfig(Config):
    """Captioned images with a Karpathy split: Flickr30K, COCO, or one's own in the same form."""

    kind: Literal["karpathy"] = "karpathy"
    """Where images and captions come from."""
    captions: Path
    """The JSON file: dataset_flickr30k.json, dataset_coco.json."""
    images: Path
    """Folder of the images."""
    dense: Path | None = None
    """JSON lines with a dense caption for every image; {split} in it stands for the split."""
    validation_images: int | None = Field(default=None, ge=1)
    """The checkpoint is chosen on so many of the images of split val, the first; none: on all."""
    augment: bool = True
    """Crop images and change word pieces in training."""
    flip: bool = True
    """Also mirror images; off where captions say left and right."""
    num_workers: int = Field(default=0, ge=0)
    """Processes that open images."""


DataConfig = Annotated[ScenesDataConfig | KarpathyDataConfig, Field(discriminator="kind")]
