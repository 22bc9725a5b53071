"""A training run of a segmentation model. Section 7; defaults are NYUDepthv2's recipe.

AdamW, decay 0.01, warm-up, then poly 0.9, clip 1; words of a fifth of the images are dropped.
Departs from the original in choosing the checkpoint on a part of `train`: it looked at `test`.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Layer
from eligo.config.layers import FLAG, override
from eligo.errors import ConfigError
from eligo.pixels.config import SIZES
from eligo.pixels.data_config import AugmentConfig, DataConfig, ScenesDataConfig
from eligo.pixels.presets import PRESETS
from eligo.pixels.segmenter_config import SegmenterConfig
from eligo.scenes.config import ROOMS
from eligo.train.config import SMOKE, OptimizerConfig, ScheduleConfig, TrainConfig


class PixelsTrainConfig(SegmenterConfig):
    """One training run."""

    task: Literal["pixels.train"] = "pixels.train"
    """What this file trains."""
    preset: int | None = None
    """How pixels and words are compared: preset 0-6 of the temperature study; over the file, under
    flags, and saved as the values it stands for."""
    train: TrainConfig = TrainConfig(batch_size=16, monitor="miou", mode="max")
    """The loop."""
    data: DataConfig
    """What it is trained on."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training images; sets train.total_steps. None: train.total_steps counts."""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=6e-5, weight_decay=0.01, schedule=ScheduleConfig(kind="poly", warmup=0.02, power=0.9)
    )
    """Scales and prior weights learn at ten times its rate, gates at gate_rate times."""
    augment: AugmentConfig = AugmentConfig()
    """How training images are varied."""
    text_dropout: float = Field(default=0.2, ge=0, le=1)
    """Share of training images whose words are dropped."""
    word_dropout: float = Field(default=0.0, ge=0, le=1)
    """Share of the others of which some words are dropped: each stays with a probability drawn for
    its image, for a model that must not take what is not named for absent."""
    depth_dropout: float = Field(default=0.0, ge=0, le=1)
    """Share of training images whose depth is dropped, for a model that can do without."""
    gate_start: float | None = Field(default=None, gt=0)
    """Where the gates of words start (gated form); none: at 1e-3, which leaves a trained encoder
    undisturbed. From scratch 0.3 is better: a closed gate lets words learn little."""
    gate_rate: float = Field(default=10.0, gt=0)
    """Gates learn at so many times the learning rate. Gates that start open should not hurry: they
    would close on words before these mean anything."""
    compile: bool = False
    """Compile the network for training (needs a GPU to be worth it)."""

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """With the preset's values between those of files and those of flags."""
        tree = {key: value for key, value in layer.tree.items() if key != "preset"}
        number = layer.tree.get("preset")
        base = Layer(tree, layer.origins, layer.height)
        if number is None:
            return base
        if number not in PRESETS:
            where = layer.where(("preset",))
            raise ConfigError(f"{where}got {number!r}, expected one of 0 to {max(PRESETS)}")
        given = {
            ".".join(path): _at(tree, path)
            for path, (_, origin) in layer.origins.items()
            if origin == FLAG and path and path != ("preset",)
        }
        return override(override(base, PRESETS[number]), given)

    @model_validator(mode="after")
    def _check(self) -> "PixelsTrainConfig":
        if not isinstance(self.data, ScenesDataConfig):
            return self
        if self.guided and self.text.encoder.kind != "words":
            raise ValueError(
                f"text.encoder.kind: got {self.text.encoder.kind}, expected words: scenes speak a "
                "language of their own"
            )
        if self.guided and self.text.source not in ("tags", "labels"):
            raise ValueError(
                f"text.source: got {self.text.source}, expected tags, labels or none: nobody "
                "writes captions of rooms with painted objects"
            )
        if self.augment.scales or self.augment.crop:
            raise ValueError("augment: scenes are only mirrored; expected no scales and no crop")
        return self

    def build(self) -> Any:
        """The task for the training loop."""
        from eligo.pixels.training.task import PixelsTask

        return PixelsTask(self)

    def smoke(self) -> "PixelsTrainConfig":
        """Two steps on one's own files; scenes shrink, and the network with them."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        one_image = {"data.validation_share": 1e-9}
        return self.replace(SMOKE | one_image | {"epochs": None, "compile": False})

    def tiny(self) -> "PixelsTrainConfig":
        """The same run on a few small rooms, with a tiny network."""
        rooms = ROOMS.replace({"height": 48, "width": 64})
        data = ScenesDataConfig(scenes=rooms, train_images=8, validation_images=4, test_images=4)
        source = self.text.source if self.text.source in ("none", "labels") else "tags"
        return self.replace(
            {
                **SIZES["small"],
                "encoder.dims": (8, 16, 24, 32), "encoder.layer_scale": (None,) * 4,
                "encoder.ranges": (4, 4, 6, 6),
                "head.channels": 16, "head.ham_channels": 16, "head.rank": 4,
                "num_classes": 14, "text_dim": 16, "classes": (),
                "text": {"source": source, "max_tags": 14,
                         "encoder": {"kind": "words", "dim": 16}},
                "data": data.model_dump(), "epochs": None,
                "inputs.depth": "metric", "inputs.depth_scale": 1000.0,
                "augment.scales": (), "augment.crop": None,
                "train.total_steps": 4, "train.batch_size": 4, "train.evaluate_every": 2,
                "train.checkpoint_every": 4, "train.precision": "no", "train.init_from": None,
                "compile": False,
            }
        )  # fmt: skip


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
