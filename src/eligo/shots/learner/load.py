"""Find the in-context learner, and the settings of the world that it was trained in."""

from pathlib import Path

from eligo.errors import InputError
from eligo.pretrained.load import find_model, shipped_model
from eligo.scenes.config import SceneConfig

LEARNER, MADE_BY = "shots_learner", "python -m benchmarks.shots.train_learner"
SCENES = SceneConfig(
    height=112, width=112, min_objects=4, max_objects=6, decoys=0, repeats=False,
    radii=(0.06, 0.09, 0.125),
)  # fmt: skip
"""Small images, so few and large objects."""
UNCLEAR = 0.5
"""Share of examples left as drawn; some of them are ambiguous."""
NUM_CANDIDATES = 32
"""Examples that selectors choose from for each query."""
_PROCESSOR = "processor_config.json"  # a learner has one, a selector has none


def find_learner(name: str | None = None) -> Path:
    """Find a learner by folder, run folder or hub name; without a name, the shipped one."""
    root = shipped_model(LEARNER, made_by=MADE_BY) if name is None else find_model(name, _PROCESSOR)
    for folder in (root, root / "model"):
        if (folder / _PROCESSOR).is_file():
            return folder
    raise InputError(f"{root}: holds no learner; expected the folder of a run of `{MADE_BY}`")


def scenes_for(image_size: int, seed: int = 0) -> SceneConfig:
    """Return the learner's scenes with images of the size that its vision tower takes."""
    return SCENES.replace({"seed": seed, "height": image_size, "width": image_size})
