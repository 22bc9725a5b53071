"""What a pruner is and how it is trained, as configs. Section 2 of the two-stage pruning guide.

The guide's own file layout loads as well; see `guide_keys`. Where this departs from the guide: the
default objective is to imitate the whole model (`objective: distill`); the guide's adversarial one
is there to compare with.
"""

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config, Layer
from eligo.errors import ConfigError
from eligo.tokens.compat import from_guide
from eligo.tokens.cost.count import Schedule
from eligo.tokens.inputs_config import (
    DataConfig,
    HostConfig,
    RandomHostConfig,
    ScenesDataConfig,
)
from eligo.train.config import (
    SMOKE,
    AnnealConfig,
    OptimizerConfig,
    ScheduleConfig,
    SearchConfig,
    TrainConfig,
)

_DEPTHS = (1 / 16, 1 / 4, 1 / 2)  # where the default plan cuts
_FIRST, _LAST = 200 / 288, 100 / 288  # what its first and last cut keep of the merged tokens
_WEIGHTS = {
    "distill": {"task": 1.0, "kl": 1.0, "hidden": 0.5, "adversarial": 0.0, "sparsity": 1e-4},
    "adversarial": {"task": 25.0, "kl": 0.0, "hidden": 0.0, "adversarial": 1.0, "sparsity": 1e-4},
}


class MergerConfig(Config):
    """Stage 1: fold the tower's tokens into fewer, before the language model."""

    kind: Literal["simple", "question_aware"] = "simple"
    """Whether the question has a say in what is kept."""
    ratio: float | None = Field(default=None, gt=0, le=1)
    """Part of the tokens to keep; none: a half, or what budget says."""
    budget: int | None = Field(default=None, ge=1)
    """Tokens to keep; must agree with ratio where both are given."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of its attention to the question."""
    diverse: bool = True
    """Whether a token that looks like a better one is marked down."""

    def resolve(self, num_tokens: int) -> int:
        """How many of `num_tokens` stay: the ratio, rounded to the nearest, or the budget."""
        ratio = 0.5 if self.ratio is None and self.budget is None else self.ratio
        budget = self.budget
        if ratio is not None:
            rounded = max(1, math.floor(ratio * num_tokens + 0.5))
            if budget is not None and budget != rounded:
                raise ConfigError(
                    f"merger.ratio {ratio} of {num_tokens} tokens is {rounded}, but merger.budget "
                    f"says {budget}; give one of them, or make them agree"
                )
            budget = rounded
        assert budget is not None
        if budget > num_tokens:
            raise ConfigError(
                f"merger.budget: got {budget}, expected at most {num_tokens}: the host's tower "
                "gives no more"
            )
        return budget


class PrunersConfig(Config):
    """Stage 2: drop tokens at the input of some layers of the language model."""

    kind: Literal["cross_attention"] = "cross_attention"
    """How a token is judged: by attention to the question."""
    layers: tuple[int, ...] | None = None
    """Where; none: at 1/16, 1/4 and 1/2 of the depth."""
    budgets: tuple[int, ...] | None = None
    """Tokens that each cut leaves; none: evenly from 69 % to 35 % of the merged (200 to 100 of
    288)."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of its attention to the question."""
    diverse: bool = True
    """Whether a token that looks like a better one is marked down."""

    def resolve(self, merged: int, num_layers: int) -> tuple[tuple[int, int], ...]:
        """(layer, budget) of every cut."""
        layers = self.layers
        if layers is None:
            layers = tuple(sorted({max(1, round(depth * num_layers)) for depth in _DEPTHS}))
            layers = tuple(layer for layer in layers if layer < num_layers)
        if list(layers) != sorted(set(layers)) or any(not 0 < at < num_layers for at in layers):
            raise ConfigError(
                f"pruners.layers: got {list(layers)}, expected rising layers from 1 to "
                f"{num_layers - 1}: the host has {num_layers}, and layer 0 is never cut"
            )
        budgets = self.budgets
        if budgets is None:
            steps = max(1, len(layers) - 1)
            parts = (_FIRST + (_LAST - _FIRST) * i / steps for i in range(len(layers)))
            budgets = tuple(max(1, math.floor(part * merged + 0.5)) for part in parts)
        if len(budgets) != len(layers):
            raise ConfigError(
                f"pruners.budgets: got {len(budgets)} for {len(layers)} layers, expected one each"
            )
        supply = merged
        for layer, budget in zip(layers, budgets, strict=True):
            if not 0 < budget <= supply:
                raise ConfigError(
                    f"pruners.budgets: got {budget} at layer {layer}, expected 1 to {supply}: "
                    "a cut can only leave what the one before it left"
                )
            supply = budget
        return tuple(zip(layers, budgets, strict=True))


class DiscriminatorConfig(Config):
    """The critic; there is one only where losses.adversarial has a weight."""

    layers: tuple[int, ...] = Field(default=(-1, -3, -5), min_length=1)
    """Layers of the language model whose outputs are compared, here and in losses.hidden."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    reinit_prob: float = Field(default=0.01, ge=0, le=1)
    """Chance per step that it starts anew: weights and optimiser state."""
    spectral_norm: bool = False
    """Keep every layer's largest singular value at 1."""


class LossesConfig(Config):
    """Weights of the losses; none: what the objective says."""

    task: float | None = Field(default=None, ge=0)
    """Cross-entropy of the answer (distill 1, adversarial 25)."""
    kl: float | None = Field(default=None, ge=0)
    """KL(whole model || pruned model) at the answer (distill 1)."""
    hidden: float | None = Field(default=None, ge=0)
    """Squared distance of their text states, relative to the whole model's (distill 0.5)."""
    adversarial: float | None = Field(default=None, ge=0)
    """To look whole to the discriminator (adversarial 1)."""
    sparsity: float | None = Field(default=None, ge=0)
    """Mean of sigmoid(score) near the kept ratio (1e-4)."""

    def resolve(self, objective: str) -> dict[str, float]:
        """Every weight."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return _WEIGHTS[objective] | given


class TemperatureConfig(AnnealConfig):
    """How soft choices are: falls linearly from start to end, then stays."""

    @model_validator(mode="after")
    def _falls(self) -> "TemperatureConfig":
        if not 0 < self.end <= self.start:
            raise ValueError(f"expected 0 < end <= start, got start {self.start}, end {self.end}")
        return self


def _adamw(lr: float) -> OptimizerConfig:
    return OptimizerConfig(lr=lr, schedule=ScheduleConfig(kind="cosine", warmup=0.1))


class OptimConfig(Config):
    """An AdamW for each part: 10 % warm-up, then cosine."""

    merger: OptimizerConfig = _adamw(2e-5)
    """Of the token merger."""
    pruners: OptimizerConfig = _adamw(2e-5)
    """Of the layer pruners."""
    discriminator: OptimizerConfig = _adamw(5e-4)
    """Of the discriminator."""


class TokensTrainConfig(Config):
    """One training of merger, pruners and, where it has a weight, discriminator."""

    task: Literal["tokens.train"] = "tokens.train"
    """What this file trains."""
    train: TrainConfig = TrainConfig(name="tokens", monitor="accuracy_hard", mode="max")
    """The loop."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the data, instead of train.total_steps."""
    host: HostConfig = HostConfig()
    """The frozen model."""
    data: DataConfig = ScenesDataConfig()
    """Questions and answers."""
    merger: MergerConfig | None = MergerConfig()
    """Stage 1; null: none."""
    pruners: PrunersConfig | None = PrunersConfig()
    """Stage 2; null: none."""
    size_bias: bool = True
    """Add the logarithm of a merged token's size to what attends to it."""
    positions: Literal["original", "reindex"] = "original"
    """Whether kept tokens keep the positions they had."""
    mask_mode: Literal["straight_through", "soft"] = "straight_through"
    """Hard masks with the gradient of soft ones, or soft masks."""
    mask_acts_on: Literal["keys", "states"] = "keys"
    """Masks bias attention, or scale hidden states as in the guide (to see that it fails)."""
    temperature: TemperatureConfig = TemperatureConfig()
    """How soft the choices are."""
    objective: Literal["distill", "adversarial"] = "distill"
    """Imitate the whole model directly, or convince a discriminator: sets the losses' weights."""
    losses: LossesConfig = LossesConfig()
    """Weights that differ from the objective's."""
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    """The critic."""
    optim: OptimConfig = OptimConfig()
    """An optimiser for each part."""
    search: SearchConfig | None = None
    """What `eligo search` varies; a training does not read it."""

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """The guide's own sections are read as well."""
        return from_guide(layer)

    @model_validator(mode="after")
    def _check(self) -> "TokensTrainConfig":
        if self.merger is None and self.pruners is None:
            raise ValueError("nothing to train: merger and pruners are both null")
        if self.epochs is not None and isinstance(self.data, ScenesDataConfig):
            steps = self.steps_of(self.data.examples)
            train = self.train.model_copy(update={"total_steps": steps})
            object.__setattr__(self, "train", train)  # frozen for users, not while it is made
        return self

    def steps_of(self, num_examples: int) -> int:
        """Steps that `epochs` passes over the data take."""
        return max(1, math.ceil((self.epochs or 1) * num_examples / self.train.batch_size))

    @property
    def weights(self) -> dict[str, float]:
        """Of all losses."""
        return self.losses.resolve(self.objective)

    def schedule(self, num_tokens: int, num_layers: int, num_text: int = 100) -> Schedule:
        """Counts for a host of this size; impossible ones are errors."""
        merged = num_tokens if self.merger is None else self.merger.resolve(num_tokens)
        cuts = () if self.pruners is None else self.pruners.resolve(merged, num_layers)
        return Schedule(num_tokens, merged, cuts, num_text, num_layers)

    def build(self) -> Any:
        """The task for the training loop."""
        from eligo.tokens.training.task import TokensTask

        return TokensTask(self)

    def smoke(self) -> "TokensTrainConfig":
        """Two steps on one's own files in one's own host; scenes shrink, and the host with them."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        count = min(4, self.data.validation)
        return self.replace(SMOKE | {"data.validation": count, "epochs": None})

    def tiny(self) -> "TokensTrainConfig":
        """The same run on 16 vision tokens, in a random narrow host as deep as the cuts need."""
        layers = max((5, *((self.pruners and self.pruners.layers) or ()))) + 1
        world = {"kind": "scenes", "scenes": {"height": 56, "width": 56}, "questions_per_image": 1}
        changes: dict[str, Any] = {
            "train.total_steps": 2, "train.batch_size": 2, "train.evaluate_every": 2,
            "train.checkpoint_every": 2, "train.precision": "no", "epochs": None,
            "train.gradient_accumulation": 1, "host.model": None, "host.dtype": "float32",
            "host.random": RandomHostConfig(image_size=56, layers=layers).model_dump(),
            "data": world | {"validation": 2}, "discriminator.dim": 8,
        }  # fmt: skip
        if self.merger is not None:
            ratio = self.merger.ratio or 0.5
            changes |= {"merger.dim": 8, "merger.ratio": ratio, "merger.budget": None}
        if self.pruners is not None:
            changes |= {"pruners.dim": 8, "pruners.budgets": None}
        return self.replace(changes)
