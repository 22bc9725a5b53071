"""Config of the tokens study: trainings, baselines and questions."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.errors import InputError
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.methods import METHODS, VIDEO_METHODS

TWO_STAGE = "two_stage"
"""The training of the first target; `two_stage_<point>` are those of the second."""
BASELINES = tuple(name for name in METHODS if name not in ("none", *VIDEO_METHODS))
_TINY_LAYERS = 12


class Training(Config):
    """A plan to train."""

    point: str | None = None
    """The point whose cost it must not exceed."""
    like: str | None = None
    """Another training whose changes it shares."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Differences from `base`, by dotted key."""
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """Seeds, one training each."""


class StudyConfig(Config):
    """Settings of `python -m benchmarks.tokens.study`."""

    task: Literal["tokens.study"] = "tokens.study"
    """Kind of this config."""
    base: str = "tokens/default"
    """Config that all trainings start from."""
    trainings: dict[str, Training] = Field(default_factory=dict)
    """Trainings by name."""
    points: dict[str, int] = Field(default_factory=lambda: {"33": 192, "11": 64})
    """Costs to compare at, each given as a number of tokens that enter the language model."""
    baselines: tuple[str, ...] = BASELINES
    """Training-free methods; the oracle is given the objects that decide the answer."""
    trials: int = Field(default=5, ge=1)
    """Settings of a baseline to try at every point (or all that it has)."""
    tuning_questions: int = Field(default=1200, ge=1)
    """Questions of the validation split, to choose the setting."""
    questions: int = Field(default=8000, ge=1)
    """Questions of the test split."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Training scenes on which the blind baseline is fitted."""
    batch_size: int = Field(default=500, ge=1)
    """Prompts in one call of `generate`."""
    resamples: int = Field(default=2000, ge=10)
    """Resamples of the bootstrap."""
    tiny: bool = False
    """Train for two steps in a tiny random host, as a test."""

    @model_validator(mode="after")
    def _check(self) -> "StudyConfig":
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
        """Return the config of one training."""
        training = self.trainings[name]
        shared = {} if training.like is None else self.trainings[training.like].changes
        changes = {**shared, **training.changes}
        config = load_config(TokensTrainConfig, self.base, changes)
        if self.tiny:
            config = config.smoke().replace({"host.random.layers": _TINY_LAYERS})
        return config.replace({"train.name": f"{name}_{seed}", "train.seed": seed})

    def without(self, names: Sequence[str]) -> "StudyConfig":
        """Return the same study without some of its trainings."""
        if unknown := [name for name in names if name not in self.trainings]:
            raise InputError(
                f"skip: got {unknown[0]!r}, expected some of {', '.join(self.trainings)}"
            )
        kept = {name: one for name, one in self.trainings.items() if name not in names}
        return StudyConfig.model_validate(self.model_dump() | {"trainings": kept})

    def quick(self) -> "StudyConfig":
        """Return a quick test on a CPU; its numbers are meaningless."""
        seeds = {
            f"trainings.{name}.seeds": training.seeds[: 2 if name == TWO_STAGE else 1]
            for name, training in self.trainings.items()
        }
        return self.replace(
            {
                **seeds, "tiny": True,
                "points": {name: kept // 24 for name, kept in self.points.items()},
                "baselines": ["random", "tome", "fastv", "oracle"], "trials": 2,
                "tuning_questions": 6, "questions": 12, "blind_scenes": 64, "batch_size": 12,
                "resamples": 50,
            }
        )  # fmt: skip
