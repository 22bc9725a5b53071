"""The embedded exam as a config: which arms, how long, on how much."""

from typing import Any, Literal

from pydantic import Field

from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.patches.training.config import PatchesTrainConfig

Arm = Literal[
    "global", "filip", "open", "open_dense", "paper", "ratio_0.25", "ratio_0.75", "ratio_1.0"
]
ARMS: tuple[Arm, ...] = (
    "global", "filip", "open", "open_dense", "paper", "ratio_0.25", "ratio_0.75", "ratio_1.0"
)  # fmt: skip
"""One vector each; all with all; LAPS (ratio 0.5); with dense text; SEPS; LAPS at other ratios."""


class ExamConfig(Config):
    """What `eligo patches exam` trains and measures; arms are the shipped scenes_* configs."""

    task: Literal["patches.exam"] = "patches.exam"
    """Which kind of config this is."""
    arms: tuple[Arm, ...] = ARMS
    """What is compared; ratio_1.0 slims nothing."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every arm is trained once with each."""
    see_steps: int = Field(default=3000, ge=1)
    """Steps in which a vision encoder, one for all arms of a seed, learns what patches show."""
    steps: int = Field(default=1500, ge=1)
    """Steps of every arm, from there on."""
    backbone_lr: float = Field(default=0.0, ge=0)
    """Learning rate of that encoder in the arms, as a share of the others'; 0: it stays so."""
    test_images: int = Field(default=2000, ge=2)
    """Scenes of the test split, with attribute pairs that no training scene has."""
    test_captions: int = Field(default=2, ge=1)
    """Sparse captions of each of them."""
    resamples: int = Field(default=2000, ge=10)
    """Of the bootstrap."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Other values of the arms' configs, by dotted key."""

    def quick(self) -> "ExamConfig":
        """The same exam in a minute on a CPU: the code runs, the numbers mean nothing."""
        small = {"width": 32, "layers": 2, "heads": 2}
        encoders = {
            "small_vision": {"image_size": 56, "patch_size": 4, **small},
            "small_text": {"width": 32, "layers": 1, "heads": 2},
            "embed_dim": 32,
        }
        data = {"kind": "scenes", "scenes": {"height": 56, "width": 56}, "train_images": 256}
        return self.replace(
            {
                "seeds": self.seeds[:2], "see_steps": min(self.see_steps, 6),
                "steps": min(self.steps, 6), "test_images": min(self.test_images, 32),
                "resamples": min(self.resamples, 200),
                "changes": {
                    "train.batch_size": 8, "train.precision": "no", "model.encoders": encoders,
                    "data": data | {"validation_images": 16},
                },
            }
        )  # fmt: skip

    def see_run(self, seed: int) -> PatchesTrainConfig:
        """The run that teaches a vision encoder to see."""
        train = {"name": f"see_{seed}", "total_steps": self.see_steps, "monitor": "seen"}
        return self._run("global", seed, train, {"see_steps": self.see_steps})

    def arm_run(self, arm: str, seed: int, vision: str) -> PatchesTrainConfig:
        """The run of one arm; `vision` is the folder of an encoder that sees."""
        name, ratio = arm, None
        if arm.startswith("ratio_"):
            name, ratio = "open", float(arm.removeprefix("ratio_"))
        changes: dict[str, Any] = {
            "see_steps": 0,
            "model.encoders.vision": vision,
            "model.encoders.backbone_lr": self.backbone_lr,
        }
        if ratio is not None:
            changes["model.match.sparse_ratio"] = ratio
        train = {"name": f"{arm}_{seed}", "total_steps": self.steps, "monitor": "rsum"}
        return self._run(name, seed, train, changes)

    def _run(
        self, name: str, seed: int, train: dict[str, Any], changes: dict[str, Any]
    ) -> PatchesTrainConfig:
        # One evaluation, at the end: the arms are measured on the test split, after equal steps.
        steps = train["total_steps"]
        train |= {"seed": seed, "evaluate_every": steps, "checkpoint_every": steps}
        base = load_config(PatchesTrainConfig, f"patches/scenes_{name}", {"see_steps": 0})
        dotted = {f"train.{key}": value for key, value in train.items()}
        return base.replace(dotted | self.changes).replace(changes)
