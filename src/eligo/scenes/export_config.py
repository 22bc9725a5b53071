"""What to write of which scenes. Imports no torch."""

from typing import Literal

from pydantic import Field, model_validator

from eligo.config import Config
from eligo.scenes.config import SPLITS, SceneConfig, Split


class ExportConfig(Config):
    """What to write."""

    task: Literal["scenes.export"] = "scenes.export"
    """Which kind of config this is."""
    format: Literal["vqa", "captions", "nyu", "sun", "jsonl"] = "jsonl"
    """VQAv2 questions, Karpathy-split captions, NYUDepthv2 or SUN RGB-D folders, plain JSON lines
    with everything."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    train: int = Field(default=1000, ge=0, lt=1_000_000)
    """Scenes of the training split."""
    validation: int = Field(default=200, ge=0, lt=1_000_000)
    """Scenes of the validation split."""
    test: int = Field(default=200, ge=0, lt=1_000_000)
    """Scenes of the test split."""
    questions: int = Field(default=8, ge=0, le=256)
    """Questions on each scene (vqa, jsonl)."""
    captions: int = Field(default=5, ge=0, le=64)
    """Sparse captions of each scene; with any, there is a dense one too (captions, jsonl)."""
    image: Literal["jpg", "png"] = "jpg"
    """File format of the images; png loses nothing."""
    depth: Literal["metric", "png8"] = "metric"
    """16-bit millimetres, or 8 bits with 255 for ten metres (nyu, jsonl; sun has its own)."""
    sensor: bool = False
    """Depth as a sensor gives it, with noise and holes (nyu, sun, jsonl)."""

    @model_validator(mode="after")
    def _check(self) -> "ExportConfig":
        if not self.train + self.validation + self.test:
            raise ValueError("nothing to export: train, validation and test are all 0")
        if self.format == "sun" and self.depth != "metric":
            raise ValueError(f"sun has a depth encoding of its own, got depth {self.depth}")
        if self.scenes.painted and (self.num_questions or self.num_captions):
            raise ValueError(
                "nobody can speak of scenes with painted objects: "
                "set scenes.painted to 0, or both questions and captions"
            )
        return self

    @property
    def num_questions(self) -> int:
        """Per scene, 0 where the format has none."""
        from eligo.scenes.formats import FORMATS

        return self.questions if FORMATS[self.format].has_questions else 0

    @property
    def num_captions(self) -> int:
        """Per scene, 0 where the format has none."""
        from eligo.scenes.formats import FORMATS

        return self.captions if FORMATS[self.format].has_captions else 0

    @property
    def num_scenes(self) -> dict[Split, int]:
        """Of the splits that are not empty."""
        sizes = (self.train, self.validation, self.test)
        return {split: size for split, size in zip(SPLITS, sizes, strict=True) if size}

    def smoke(self) -> "ExportConfig":
        """The same in small."""
        return self.replace({split: min(2, getattr(self, split)) for split in SPLITS})
