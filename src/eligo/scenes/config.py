"""Configs of scenes, of the tiny LLaVA, and of exports."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

GRID = 4
"""Objects are in different cells of a GRID x GRID grid, off its lines: occlusion stays partial,
and a question about row, column or quadrant has one answer."""


_Weight = Annotated[int, Field(ge=0)]


def _some_weight(weights: tuple[int, ...]) -> tuple[int, ...]:
    if not any(weights):
        raise ValueError("expected at least one weight above 0")
    return weights


FamilyWeights = Annotated[
    tuple[_Weight, _Weight, _Weight, _Weight, _Weight, _Weight], AfterValidator(_some_weight)
]
"""Relative frequency of each family of questions."""


class SceneConfig(Config):
    """A distribution of scenes; with a split and an index, it determines one scene."""

    height: int = Field(default=336, ge=32, le=4096)
    """Image height in pixels."""
    width: int = Field(default=336, ge=32, le=4096)
    """Image width in pixels."""
    seed: Seed = 0
    """Seed of all scenes."""
    min_objects: int = Field(default=3, ge=1, le=8)
    """Fewest objects in a room."""
    max_objects: int = Field(default=8, ge=1, le=8)
    """Most objects in a room."""
    radii: tuple[float, float, float] = (0.042, 0.07, 0.115)
    """Radius of small, medium and large objects, as a share of the shorter side."""
    repeats: bool = True
    """Up to four objects share colour, shape or both (defeats pure diversity)."""
    decoys: int = Field(default=3, ge=0, le=4)
    """Most high-contrast black-and-white decoys, flat or solid; no question is about them
    (defeats pure saliency)."""
    camouflaged: int = Field(default=0, ge=0, le=2)
    """Most objects that look exactly like the room behind them: only depth shows them."""
    painted: int = Field(default=0, ge=0, le=2)
    """Most flat pictures of objects: only depth distinguishes them from solid ones."""
    twins: bool = False
    """Some shapes have two names; only the image's tags tell which one applies."""
    binding: bool = False
    """Objects are labelled with one of ten nonce classes, by a colour-texture code that is new in
    every image and given by its tags."""

    @property
    def num_slots(self) -> int:
        """Slots of a scene graph; most scenes leave some empty."""
        return self.max_objects + self.decoys + self.camouflaged + self.painted

    @property
    def shorter_side(self) -> int:
        """Shorter side in pixels; radii are shares of it."""
        return min(self.height, self.width)

    @model_validator(mode="after")
    def _check(self) -> "SceneConfig":
        if self.min_objects > self.max_objects:
            raise ValueError(
                f"min_objects {self.min_objects} is above max_objects {self.max_objects}"
            )
        if self.num_slots > GRID * GRID:
            raise ValueError(
                f"{self.num_slots} things do not fit {GRID * GRID} places; "
                "lower max_objects, decoys, camouflaged or painted"
            )
        if not 0.02 <= self.radii[0] < self.radii[1] < self.radii[2] <= 0.125:
            raise ValueError(f"radii must rise within [0.02, 0.125], got {self.radii}")
        return self


ROOMS = SceneConfig(
    height=96, width=128, radii=(0.07, 0.095, 0.125), decoys=2, camouflaged=2, painted=2, twins=True
)
"""Small rooms with depth, camouflage and twins, for segmentation."""


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


class ExportConfig(Config):
    """What to write."""

    task: Literal["scenes.export"] = "scenes.export"
    """Which kind of config this is."""
    format: Literal["vqa", "captions", "nyu", "sun", "jsonl"] = "jsonl"
    """VQAv2 questions, Karpathy-split captions, NYUDepthv2 or SUN RGB-D folders, plain JSON lines
    with everything."""
    scenes: SceneConfig = SceneConfig()
    """The scenes."""
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
                "scenes with painted objects have no questions or captions: "
                "set scenes.painted to 0, or both questions and captions"
            )
        return self

    @property
    def num_questions(self) -> int:
        """Questions per scene; 0 if the format has none."""
        from eligo.scenes.formats import FORMATS

        return self.questions if FORMATS[self.format].has_questions else 0

    @property
    def num_captions(self) -> int:
        """Captions per scene; 0 if the format has none."""
        from eligo.scenes.formats import FORMATS

        return self.captions if FORMATS[self.format].has_captions else 0

    @property
    def num_scenes(self) -> dict[Split, int]:
        """Number of scenes of each split that is not empty."""
        sizes = (self.train, self.validation, self.test)
        return {split: size for split, size in zip(SPLITS, sizes, strict=True) if size}

    def smoke(self) -> "ExportConfig":
        """Return a tiny version of this config."""
        return self.replace({split: min(2, getattr(self, split)) for split in SPLITS})
