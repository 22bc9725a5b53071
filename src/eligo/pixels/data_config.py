"""Where images, depth, labels and words come from. Imports no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed
from eligo.scenes.config import ROOMS, SceneConfig

DepthFormat = Literal["png8", "metric", "sun16", "none"]
ChannelOrder = Literal["rgb", "bgr"]


class InputsConfig(Config):
    """How pictures become numbers; a model remembers it."""

    channel_order: ChannelOrder = "rgb"
    """Order of the colours that the network sees; official NYU weights want bgr."""
    depth: DepthFormat = "metric"
    """png8: 8 bits, every value counts; metric: metres times depth_scale, 0 is unknown; sun16: 16
    bits as SUN RGB-D stores millimetres; none: the network sees no depth, though there be some."""
    depth_scale: float = Field(default=1000.0, gt=0)
    """Units per metre of metric depth."""


class AugmentConfig(Config):
    """How training images are varied."""

    mirror: bool = True
    """Mirror half of them."""
    scales: tuple[float, ...] = ()
    """Sizes to draw from, as shares of the image's own; none: as it is."""
    crop: tuple[int, int] | None = None
    """Height and width that a random piece is cut or padded to; none: the whole image."""

    @model_validator(mode="after")
    def _check(self) -> "AugmentConfig":
        if any(scale <= 0 for scale in self.scales):
            raise ValueError(f"scales: got {self.scales}, expected shares above 0")
        if self.scales and self.crop is None:
            raise ValueError("scales: images of several sizes need crop, to be of one size again")
        if self.crop is not None and min(self.crop) < 32:
            raise ValueError(f"crop: got {self.crop}, expected at least 32 x 32")
        return self


class ScenesDataConfig(Config):
    """Rooms of the embedded world, painted on the device before the first step."""

    kind: Literal["scenes"] = "scenes"
    """Where images come from."""
    scenes: SceneConfig = ROOMS
    """The world."""
    train_images: int = Field(default=4000, ge=1)
    """Scenes to learn from."""
    validation_images: int = Field(default=500, ge=1)
    """Scenes that choose the checkpoint."""
    test_images: int = Field(default=500, ge=1)
    """Scenes of `evaluate`, with attribute pairs that no training scene has."""
    sensor: bool = False
    """Depth as a sensor gives it, with noise and holes."""
    tags: Literal["oracle", "predicted"] = "oracle"
    """Tags to learn from: the truth, or what a tagger of this precision and recall says."""
    precision: float = Field(default=0.9, gt=0, le=1)
    """Of the tagger whose tags are called predicted."""
    recall: float = Field(default=0.9, ge=0, le=1)
    """Of the same tagger."""
    phrases: tuple[int, ...] = (16,)
    """Numbers of phrases to draw from at each step (binding scenes)."""

    @model_validator(mode="after")
    def _check(self) -> "ScenesDataConfig":
        needed = self.scenes.max_objects + self.scenes.camouflaged
        if self.scenes.binding and not (
            self.phrases and all(needed <= count <= 32 for count in self.phrases)
        ):
            raise ValueError(
                f"phrases: got {self.phrases}, expected numbers from {needed} (a phrase for each "
                "object) to 32; lower scenes.max_objects for fewer"
            )
        if self.scenes.binding and self.tags == "predicted":
            raise ValueError("tags: binding scenes have no tagger; expected oracle")
        return self


class FilesConfig(Config):
    """What all files on disk have in common. Labels on disk are 1..K, 0 is ignored."""

    words: Path | None = None
    """JSON lines with id, tags and captions of every image; joined by exact id."""
    words_are: Literal["predicted", "oracle"] = "predicted"
    """Who chose the words: a tagger or person who saw the image, or someone who saw the labels."""
    allow_missing_words: bool = False
    """Go on where images have no words, and say how many have."""
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training images that chooses the checkpoint instead."""
    validation_seed: Seed = 0
    """Which ones."""
    num_workers: int = Field(default=0, ge=0)
    """Processes that open images."""


class RoomsDataConfig(FilesConfig):
    """Folders RGB/, Depth/ and Label/ (or labels/), with train.txt and test.txt."""

    root: Path
    """The folder of the data set."""
    classes: Path | None = None
    """A text file with one class name per line; none: the data set's standard names."""


class NyuDataConfig(RoomsDataConfig):
    """NYUDepthv2: 795 and 654 images, 40 classes."""

    kind: Literal["nyu"] = "nyu"
    """Where images come from."""


class SunDataConfig(RoomsDataConfig):
    """SUN RGB-D: 5285 and 5050 images, 37 classes."""

    kind: Literal["sun"] = "sun"
    """Where images come from."""


class JsonlDataConfig(FilesConfig):
    """One's own images: JSON lines with id, image, depth, label, tags, captions."""

    kind: Literal["jsonl"] = "jsonl"
    """Where images come from."""
    train: Path
    """The file of training images; its paths are relative to it."""
    test: Path | None = None
    """The file of test images."""
    classes: Path
    """A text file with one class name per line."""


FilesDataConfig = NyuDataConfig | SunDataConfig | JsonlDataConfig
DataConfig = Annotated[
    ScenesDataConfig | NyuDataConfig | SunDataConfig | JsonlDataConfig,
    Field(discriminator="kind"),
]
