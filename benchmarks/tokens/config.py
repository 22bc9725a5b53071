"""The exam as a config: what is trained, what it is compared with, by which questions."""

from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.tokens.config import TokensTrainConfig

TWO_STAGE = "two_stage"
"""The training that the first bar is about; `two_stage_<point>` are those of the second."""
BASELINES = ("random", "uniform", "pool", "tome", "fastv", "pyramiddrop", "visionzip", "divprune",
          "cdpruner", "sparsevlm", "oracle")  # fmt: skip
_TINY_LAYERS = 12


class Training(Config):
    """A plan that is trained, and with it an arm of the exam."""

    point: str | None = None
    """Which of the points it spends the FLOPs of."""
    like: str | None = None
    """Another training whose changes it shares."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """What differs from `base`, by dotted key."""
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """It is trained once with each."""


class ExamConfig(Config):
    """What `eligo tokens exam` trains, tunes and asks."""

    task: Literal["tokens.exam"] = "tokens.exam"
    """Which kind of config this is."""
    base: str = "tokens/default"
    """The training that all others change."""
    trainings: dict[str, Training] = Field(default_factory=dict)
    """By name."""
    points: dict[str, int] = Field(default_factory=lambda: {"33": 192, "11": 64})
    """Costs to compare at: those of so many tokens before the language model."""
    baselines: tuple[str, ...] = BASELINES
    """Training-free methods; the oracle is told what decides the answer."""
    trials: int = Field(default=5, ge=1)
    """Settings of a baseline that are tried, at every point (all it has, where those are fewer)."""
    tuning_questions: int = Field(default=1200, ge=1)
    """Of the validation split, by which one of them is chosen."""
    questions: int = Field(default=8000, ge=1)
    """Of the test split."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Training scenes on which the blind baseline is fitted."""
    batch_size: int = Field(default=500, ge=1)
    """Prompts in one call of `generate`."""
    resamples: int = Field(default=2000, ge=10)
    """Of the bootstrap."""
    tiny: bool = False
    """Trainings of two steps in a tiny random host, to see the exam run."""

    @model_validator(mode="after")
    def _check(self) -> "ExamConfig":
        for name, training in self.trainings.items():
            if training.point is not None and training.point not in self.points:
                raise ValueError(
                    f"trainings.{name}.point: got {training.point!r}, expected one of "
                    f"{', '.join(self.points)}"
                )
            if training.like is not None and training.like not in self.trainings:
                raise ValueError(
                    f"trainings.{name}.like: got {training.like!r}, expected another training"
                )
        return self

    def run(self, name: str, seed: int) -> TokensTrainConfig:
        """One training."""
        training = self.trainings[name]
        shared = {} if training.like is None else self.trainings[training.like].changes
        changes = {**shared, **training.changes}
        config = load_config(TokensTrainConfig, self.base, changes)
        if self.tiny:
            config = config.smoke().replace({"host.random.layers": _TINY_LAYERS})
        return config.replace({"train.name": f"{name}_{seed}", "train.seed": seed})

    def quick(self) -> "ExamConfig":
        """The same in a minute on a CPU: the code runs, the numbers mean nothing."""
        return self.replace(
            {
                "tiny": True, "points": {name: kept // 24 for name, kept in self.points.items()},
                "baselines": ["random", "tome", "fastv", "oracle"], "trials": 2,
                "tuning_questions": 6, "questions": 12, "blind_scenes": 64, "batch_size": 12,
                "resamples": 50,
            }
        )  # fmt: skip
