"""Configs of the study and of the training of its in-context learner."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config, load_config
from eligo.config.bounds import Seed, Whole
from eligo.scenes.config import SceneConfig, VlmConfig
from eligo.shots.config import ShotsTrainConfig
from eligo.shots.learner.load import NUM_CANDIDATES, SCENES, UNCLEAR
from eligo.train.config import AnnealConfig, OptimizerConfig, TrainConfig

Part = Literal["all", "health", "teach", "train", "measure", "analytic"]
VARIANTS = ("v0", "v1", "v2", "v2_gru", "v3")
_SMOKE = Path(__file__).with_name("study_smoke.yaml")


class VariantConfig(Config):
    """A selector to train."""

    of: Literal["v0", "v1", "v2", "v2_gru", "v3"]
    """The shipped config that it starts from."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changed values, by dotted key."""


class LexiconsConfig(Config):
    """Number of lexicons per split; each is a domain with 64 examples."""

    train: int = Field(default=100, ge=2)
    """For training selectors; some of them choose each selector's best step."""
    validation: int = Field(default=25, ge=1)
    """For the health check, and for tuning baselines."""
    test: int = Field(default=50, ge=1)
    """For the comparison."""


class StudyConfig(Config):
    """What the study teaches, trains and compares."""

    task: Literal["shots.study"] = "shots.study"
    """Which kind of config this is."""
    learner: str | None = None
    """The in-context learner that teaches and evaluates: its folder, run folder or hub name;
    none: the shipped one."""
    scenes: SceneConfig = SCENES
    """Scenes, as in the learner's training; images have the size that it takes."""
    unclear: float = Field(default=UNCLEAR, ge=0, le=1)
    """Share of examples left as drawn; some of them are ambiguous."""
    lexicons: LexiconsConfig = LexiconsConfig()
    """How many; splits share neither lexicons nor scenes."""
    queries: int = Field(default=40, ge=1)
    """Per lexicon."""
    fixed_queries: int = Field(default=16, ge=1)
    """Other queries of each test lexicon, by which best-fixed chooses its list."""
    num_candidates: int = Field(default=NUM_CANDIDATES, ge=2, le=60)
    """Candidates per query, drawn from the examples of its lexicon."""
    train_shots: int = Field(default=2, ge=1, le=4)
    """Length of the lists that selectors are trained on."""
    shots: tuple[Whole, ...] = Field(default=(2, 4), min_length=1)
    """Lengths of the lists that are compared; targets refer to the first."""
    beam: int = Field(default=5, ge=1)
    """Beam width of teacher and oracle."""
    beam_diversity: float = Field(default=0.0, ge=0)
    """Penalty for lists that share examples, when teaching training queries."""
    variants: dict[str, VariantConfig] = Field(
        default_factory=lambda: {
            name: VariantConfig.model_validate({"of": name}) for name in VARIANTS
        }
    )
    """Selectors to train, by name."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Each variant is trained once per seed."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changed values of all variants' configs, by dotted key."""
    resamples: int = Field(default=10_000, ge=10)
    """Of the bootstrap."""
    analytic_records: int = Field(default=2500, ge=20)
    """Queries per formula of the analytic part; a fifth of them are test queries."""
    analytic_steps: int = Field(default=600, ge=1)
    """Training steps of each selector there."""
    must_be_healthy: bool = True
    """Stop if the health check of the learner fails."""

    def quick(self) -> "StudyConfig":
        """Return a version that runs in two minutes on a CPU; its numbers mean nothing."""
        return load_config(StudyConfig, _SMOKE, {"learner": self.learner})

    def run(self, variant: str, seed: int, taught: Path, out: Path) -> ShotsTrainConfig:
        """Return the training config of a variant."""
        own = {
            "train.name": f"{variant}_{seed}", "train.seed": seed, "train.out": out,
            "data.path": taught, "model.K": self.num_candidates,
            "model.shot_num": self.train_shots,
        }  # fmt: skip
        wanted = self.variants[variant]
        base = load_config(ShotsTrainConfig, f"shots/{wanted.of}", own)
        return base.replace(self.changes | wanted.changes)


class LearnerConfig(Config):
    """Training of a small LLaVA that learns nonce words from examples in its prompt."""

    task: Literal["shots.train-learner"] = "shots.train-learner"
    """Which kind of config this is."""
    train: TrainConfig
    """The training loop."""
    model: VlmConfig = VlmConfig(
        image_size=112, vision_layers=4, vision_width=96, layers=9, width=160, hidden=448, heads=4
    )
    """3.5 million parameters: 6.9 MB in half precision. Deep, since an answer takes five successive
    steps: what an example shows, what its word means, what the question's words mean, which object
    they name, and its attribute."""
    scenes: SceneConfig = SCENES
    """Scenes of the lessons."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimiser of all parts."""
    vision_steps: int = Field(default=0, ge=0)
    """First steps that train only the vision tower, on patch attributes."""
    vision_weight: float = Field(default=0.2, ge=0)
    """Weight of the patch-attribute loss afterwards."""
    word_weight: AnnealConfig = AnnealConfig(start=1.0, end=0.2, anneal_fraction=0.8)
    """Weight of the read-out losses (`readouts`)."""
    plain: AnnealConfig = AnnealConfig(start=0.8, end=0.1, anneal_fraction=0.3)
    """Share of lessons with plain words: known words first, then nonce words."""
    unclear: float = Field(default=0.25, ge=0, le=1)
    """Share of examples left as drawn; some of them are ambiguous."""
    compile: bool = False
    """Compile the layers (useful on a GPU only)."""
    validation_lessons: int = Field(default=512, ge=1)
    """Lessons of the validation split that choose `best`."""

    @model_validator(mode="after")
    def _check(self) -> "LearnerConfig":
        size = self.model.image_size
        if (self.scenes.height, self.scenes.width) != (size, size):
            raise ValueError(
                f"scenes.height {self.scenes.height} and scenes.width {self.scenes.width}: "
                f"expected both to be {size}, model.image_size"
            )
        if self.scenes.min_objects < 4:
            raise ValueError(
                f"scenes.min_objects: got {self.scenes.min_objects}, expected at least 4: a "
                "question's scene holds four combinations of two attributes"
            )
        return self

    def smoke(self) -> "LearnerConfig":
        """Return a tiny version of the same run."""
        changes = {
            "model": {
                "image_size": 56, "vision_width": 32, "vision_layers": 2, "layers": 4, "width": 32,
                "hidden": 64, "heads": 2,
            },
            "scenes": {"height": 56, "width": 56},
            "train": {
                "total_steps": 4, "batch_size": 4, "evaluate_every": 2, "checkpoint_every": 2,
                "precision": "no", "init_from": None, "max_minutes": None,
            },
            "validation_lessons": 8,
            "compile": False,
            "vision_steps": min(self.vision_steps, 2),
        }  # fmt: skip
        return self.replace(changes)
