"""The exam as a config: how many lexicons, which arms, how long they learn. Imports no torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eligo.config import Config, load_config
from eligo.config.bounds import Seed, Whole
from eligo.scenes.config import SceneConfig
from eligo.shots.config import ShotsTrainConfig
from eligo.shots.learner.learner_config import LearnerConfig

ARMS = ("v0", "v1", "v2", "v2_gru", "v3")


class ArmConfig(Config):
    """What is trained in an arm."""

    of: Literal["v0", "v1", "v2", "v2_gru", "v3"]
    """The shipped config of that name."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Other values of it, by dotted key."""


class LexiconsConfig(Config):
    """How many lexicons a split has; every one is a domain with 64 examples."""

    train: int = Field(default=100, ge=2)
    """That selectors learn from; some of them choose each selector's best step."""
    validation: int = Field(default=25, ge=1)
    """On which the exam's health is looked at, and baselines are tuned."""
    test: int = Field(default=50, ge=1)
    """On which all are compared."""


class ExamConfig(Config):
    """What `eligo shots exam` asks, trains and compares."""

    task: Literal["shots.exam"] = "shots.exam"
    """Which kind of config this is."""
    learner: str | None = None
    """The in-context learner that teaches and judges: its folder or its run's, or its name on the
    hub; none: the one that comes with eligo."""
    scenes: SceneConfig = LearnerConfig.model_fields["scenes"].default
    """The world, as in the learner's training; images are as large as it wants them."""
    unclear: float = Field(default=0.5, ge=0, le=1)
    """Share of examples that are left as they were drawn: some of them could mean two things."""
    lexicons: LexiconsConfig = LexiconsConfig()
    """How many of them; splits share neither lexicons nor scenes."""
    queries: int = Field(default=40, ge=1)
    """Of each lexicon."""
    fixed_queries: int = Field(default=16, ge=1)
    """Other queries of each test lexicon, by which best-fixed chooses its list."""
    num_candidates: int = Field(default=32, ge=2, le=60)
    """Examples that a query can get, drawn from its lexicon's."""
    train_shots: int = Field(default=2, ge=1, le=4)
    """Examples in the lists that selectors learn."""
    shots: tuple[Whole, ...] = Field(default=(2, 4), min_length=1)
    """Examples in the lists that are compared; musts are judged by the first."""
    beam: int = Field(default=5, ge=1)
    """Lists that teacher and oracle keep at each step."""
    arms: dict[str, ArmConfig] = Field(
        default_factory=lambda: {name: ArmConfig.model_validate({"of": name}) for name in ARMS}
    )
    """What is trained, by the name of its row."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every arm is trained once with each."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Other values of all arms' configs, by dotted key."""
    resamples: int = Field(default=10_000, ge=10)
    """Of the bootstrap."""
    analytic_records: int = Field(default=2500, ge=20)
    """Queries of each formula of the analytic part; a fifth of them are test queries."""
    analytic_steps: int = Field(default=600, ge=1)
    """Training steps of each arm there."""
    must_be_healthy: bool = True
    """Stop where the exam turns out to be none."""

    def quick(self) -> "ExamConfig":
        """The same exam in two minutes on a CPU: the code runs, the numbers mean nothing."""
        return load_config(
            ExamConfig, Path("benchmarks/shots/study_smoke.yaml"), {"learner": self.learner}
        )

    def run(self, arm: str, seed: int, taught: Path, out: Path) -> ShotsTrainConfig:
        """The training of an arm."""
        own = {
            "train.name": f"{arm}_{seed}", "train.seed": seed, "train.out": out,
            "data.path": taught, "model.K": self.num_candidates,
            "model.shot_num": self.train_shots,
        }  # fmt: skip
        wanted = self.arms[arm]
        base = load_config(ShotsTrainConfig, f"shots/{wanted.of}", own)
        return base.replace(self.changes | wanted.changes)
