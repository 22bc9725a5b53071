"""Which words come with an image, and what turns them into vectors. Imports no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from eligo.config import Config
from eligo.config.bounds import Seed

Source = Literal["none", "tags", "labels", "captions", "both"]


class ClipTextConfig(Config):
    """A frozen CLIP text model with its projection."""

    kind: Literal["clip"] = "clip"
    """What turns words into vectors."""
    model: str = "openai/clip-vit-base-patch16"
    """Folder or hub name of the model."""
    cache: Path | None = None
    """A safetensors file that keeps vectors between runs; none: encode anew."""


class TableTextConfig(Config):
    """Vectors made elsewhere, by name."""

    kind: Literal["table"] = "table"
    """What turns words into vectors."""
    file: Path
    """A safetensors file with one vector per name."""


class WordsTextConfig(Config):
    """The scenes' own words: a fixed random unit vector for each."""

    kind: Literal["words"] = "words"
    """What turns words into vectors."""
    dim: int = Field(default=512, ge=1)
    """Width of the vectors."""
    seed: Seed = 0
    """Another seed is another language."""


AnyTextEncoderConfig = Annotated[
    ClipTextConfig | TableTextConfig | WordsTextConfig, Field(discriminator="kind")
]


class TextConfig(Config):
    """The words of every image, padded to one number."""

    source: Source = "tags"
    """none; tags: those of the image (alias imglabels); labels: all class names, for every image;
    captions: sentences about the image; both: tags, then captions."""
    max_tags: int = Field(default=6, ge=1)
    """Tags of an image that count, from the first."""
    max_captions: int = Field(default=10, ge=1)
    """Sentences of an image that count, from the first."""
    encoder: AnyTextEncoderConfig = ClipTextConfig()
    """What turns words into vectors."""

    @field_validator("source", mode="before")
    @classmethod
    def _known_as(cls, source: object) -> object:
        return "tags" if source == "imglabels" else source

    @property
    def kinds(self) -> tuple[Literal["tags", "captions"], ...]:
        """What is said about each image by itself; one of them is enough."""
        match self.source:
            case "tags" | "captions":
                return (self.source,)
            case "both":
                return ("tags", "captions")
            case _:
                return ()

    def num_words(self, num_classes: int) -> int:
        """Places for words; the same for every image."""
        tags, captions = self.max_tags, self.max_captions
        places = {"none": 0, "tags": tags, "labels": num_classes, "captions": captions}
        return {**places, "both": tags + captions}[self.source]
