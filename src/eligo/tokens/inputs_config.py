"""What a pruner is trained on: the frozen host, and where its questions come from."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from eligo.config import Config
from eligo.scenes.config import FamilyWeights, SceneConfig


class RandomHostConfig(Config):
    """A LLaVA with random weights that reads the scenes' words: to try code, not to be right."""

    image_size: int = Field(default=336, ge=14, multiple_of=14)
    """Pixels a side; must be a multiple of 14."""
    vision_layers: int = Field(default=2, ge=2)
    """Layers of the vision tower."""
    vision_width: int = Field(default=32, ge=1)
    """Width of the vision tower."""
    layers: int = Field(default=12, ge=2)
    """Layers of the language model."""
    width: int = Field(default=32, ge=1)
    """Width of the language model."""
    hidden: int = Field(default=64, ge=1)
    """Width of its feed-forward layers."""
    heads: int = Field(default=2, ge=1)
    """Attention heads, of both."""


class HostConfig(Config):
    """The frozen vision-language model."""

    model: str | None = None
    """Folder, shipped name or hub name (OWNER/NAME); none: the tiny LLaVA that comes with eligo."""
    random: RandomHostConfig | None = None
    """Instead of a trained model, one with random weights of these sizes."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Its weights' type."""


class _DataConfig(Config):
    validation: int = Field(default=512, ge=1)
    """Validation questions that choose the checkpoint, always the same."""
    max_vision_tokens: int | None = Field(default=None, ge=1)
    """Most vision tokens of an image, for hosts that take images of any size."""
    image_max_size: int | None = Field(default=None, ge=28)
    """Longest side of an image in pixels, for hosts that take images of any size."""


class ScenesDataConfig(_DataConfig):
    """Endless questions from the embedded world."""

    kind: Literal["scenes"] = "scenes"
    """Where the questions come from."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    examples: int = Field(default=12000, ge=1)
    """What `epochs` counts as one pass; no scene is ever seen twice."""
    questions_per_image: int = Field(default=4, ge=1)
    """Questions on each image; each is a row of its own, they only share the tower's work."""
    weights: FamilyWeights = (2, 2, 2, 3, 4, 2)
    """How often each family is asked: lookup, existence, count, comparison, relation, location."""


class _FilesConfig(_DataConfig):
    instruction: str = ""
    """Put behind every question, such as "Answer the question using a single word or phrase."."""
    num_workers: int = Field(default=0, ge=0)
    """Processes that open images."""


class VqaDataConfig(_FilesConfig):
    """A folder in the format of VQAv2: questions, annotations, images."""

    kind: Literal["vqa"] = "vqa"
    """Where the questions come from."""
    folder: Path
    """Holds `*<subtype>*questions.json`, `*<subtype>*annotations.json` and `<subtype>/` images."""
    train_subtype: str = "train2014"
    """What the training files are called by."""
    validation_subtype: str = "val2014"
    """What the validation files are called by; never the test set."""


class LinesDataConfig(_FilesConfig):
    """JSON lines with `image, question, answers`."""

    kind: Literal["jsonl"] = "jsonl"
    """Where the questions come from."""
    train_lines: Path
    """To learn from."""
    validation_lines: Path
    """To choose the checkpoint by; never the test set."""


DataConfig = Annotated[
    ScenesDataConfig | VqaDataConfig | LinesDataConfig, Field(discriminator="kind")
]
