"""What a world of scenes looks like: size, crowd, and one switch per hard feature."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

GRID = 4
"""Objects stand in different cells of a GRID x GRID grid, off its lines: occlusion stays partial,
and a question about row, column or quadrant has one answer."""


_Weight = Annotated[int, Field(ge=0)]


def _some_weight(weights: tuple[int, ...]) -> tuple[int, ...]:
    if not any(weights):
        raise ValueError("expected at least one weight above 0")
    return weights


FamilyWeights = Annotated[
    tuple[_Weight, _Weight, _Weight, _Weight, _Weight, _Weight], AfterValidator(_some_weight)
]
"""How often each family of questions is asked."""


class SceneConfig(Config):
    """A family of scenes; together with a split and an index it names one scene."""

    height: int = Field(default=336, ge=32, le=4096)
    """Image height in pixels."""
    width: int = Field(default=336, ge=32, le=4096)
    """Image width in pixels."""
    seed: Seed = 0
    """Another seed is another world with the same look."""
    min_objects: int = Field(default=3, ge=1, le=8)
    """Fewest objects in a room."""
    max_objects: int = Field(default=8, ge=1, le=8)
    """Most objects in a room."""
    radii: tuple[float, float, float] = (0.042, 0.07, 0.115)
    """Radius of small, medium and large objects, as a share of the shorter side."""
    repeats: bool = True
    """Up to four objects share colour, shape or both (defeats pure diversity)."""
    decoys: int = Field(default=3, ge=0, le=4)
    """Most high-contrast black-and-white decoys, flat or solid; nobody asks for them
    (defeats pure saliency)."""
    camouflaged: int = Field(default=0, ge=0, le=2)
    """Most objects that look exactly like the room behind them: only depth shows them."""
    painted: int = Field(default=0, ge=0, le=2)
    """Most flat pictures of objects: only depth tells them from solid ones."""
    twins: bool = False
    """Some looks have two names; only the image's tags tell which."""
    binding: bool = False
    """Objects are labelled with one of ten nonce classes, by a colour-texture code that is new in
    every image and stands in its tags."""

    @property
    def num_slots(self) -> int:
        """Places for things in a scene graph; most scenes fill some of them only."""
        return self.max_objects + self.decoys + self.camouflaged + self.painted

    @property
    def shorter_side(self) -> int:
        """In pixels; radii are shares of it."""
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
