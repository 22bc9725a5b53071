"""Configs of the tokens family: host, data, pruner, training and sweep.

Configs of the two-stage pruning design (docs/sources.md) load as well; see `compat`. That design
trains against a discriminator (`objective: adversarial`); the default here is to imitate the
unpruned model (`objective: distill`).
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from eligo.config import Config, Layer
from eligo.config.bounds import Whole
from eligo.errors import ConfigError
from eligo.scenes.config import FamilyWeights, SceneConfig
from eligo.tokens.compat import from_two_stage_design
from eligo.tokens.cost.flops import Schedule
from eligo.tokens.cost.proposals import DEPTHS, PROPORTIONS
from eligo.train.config import (
    SMOKE,
    SMOKE_BATCH,
    AnnealConfig,
    OptimizerConfig,
    ScheduleConfig,
    SearchConfig,
    TrainConfig,
)

_NO_WEIGHTS = {"task": 0.0, "kl": 0.0, "hidden": 0.0, "attention": 0.0, "adversarial": 0.0}
_WEIGHTS = {
    "distill": _NO_WEIGHTS | {"task": 1.0, "kl": 1.0, "hidden": 0.5, "sparsity": 1e-4},
    "adversarial": _NO_WEIGHTS | {"task": 25.0, "adversarial": 1.0, "sparsity": 1e-4},
}


class RandomHostConfig(Config):
    """A LLaVA with random weights and the vocabulary of the scenes, to try the code."""

    image_size: int = Field(default=336, ge=14, multiple_of=14)
    """Image side in pixels; a multiple of 14."""
    vision_layers: int = Field(default=2, ge=2)
    """Layers of the vision tower."""
    vision_width: int = Field(default=32, ge=1)
    """Width of the vision tower."""
    layers: int = Field(default=12, ge=2)
    """Layers of the language model."""
    width: int = Field(default=32, ge=1)
    """Width of the language model."""
    hidden: int = Field(default=64, ge=1)
    """Width of its feed-forward layers."""
    heads: int = Field(default=2, ge=1)
    """Attention heads of tower and language model."""


class HostConfig(Config):
    """The frozen vision-language model."""

    model: str | None = None
    """Folder, shipped name or hub name (OWNER/NAME); none: the tiny LLaVA that comes with eligo."""
    random: RandomHostConfig | None = None
    """A model with random weights of these sizes, instead of a trained one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the weights."""

    def without_effect(self) -> dict[str, str]:
        """The name of a model beside sizes of a random one."""
        return {} if self.random is None else {"model": "host.random is used instead"}


class _DataConfig(Config):
    validation: int = Field(default=512, ge=1)
    """Number of validation questions, always the same ones; they choose the checkpoint."""
    max_vision_tokens: int | None = Field(default=None, ge=1)
    """Maximum vision tokens of an image, for hosts that take images of any size."""
    image_max_size: int | None = Field(default=None, ge=28)
    """Longest side of an image in pixels, for hosts that take images of any size."""


class ScenesDataConfig(_DataConfig):
    """Questions on generated scenes; no scene is used twice."""

    kind: Literal["scenes"] = "scenes"
    """Source of the questions."""
    scenes: SceneConfig = SceneConfig()
    """Settings of the scenes."""
    examples: int = Field(default=12000, ge=1)
    """Number of examples that `epochs` counts as one pass."""
    questions_per_image: int = Field(default=4, ge=1)
    """Questions on each image. Each is a row of its own; they share one pass of the tower."""
    weights: FamilyWeights = (2, 2, 2, 3, 4, 2)
    """Weights of the families: lookup, existence, count, comparison, relation, location."""


class _FilesConfig(_DataConfig):
    instruction: str = ""
    """Text after every question, such as "Answer the question using a single word or phrase."."""
    questions_per_image: int = Field(default=1, ge=1)
    """Questions on each image of a step, in a LLaVA: the image is read once for all of them."""
    num_workers: int | None = Field(default=None, ge=0)
    """Worker processes that read images; none: as many as the cores allow."""


class VqaDataConfig(_FilesConfig):
    """A folder in the format of VQAv2: questions, annotations, images."""

    kind: Literal["vqa"] = "vqa"
    """Source of the questions."""
    folder: Path
    """Holds `*<subtype>*questions.json`, `*<subtype>*annotations.json` and `<subtype>/` images."""
    train_subtype: str = "train2014"
    """Part of the training files' names."""
    validation_subtype: str = "val2014"
    """Part of the validation files' names; never the test set."""


class LinesDataConfig(_FilesConfig):
    """JSON lines with `image, question, answers`."""

    kind: Literal["jsonl"] = "jsonl"
    """Source of the questions."""
    train_lines: Path
    """Training examples; of lines with a split, those of `train`."""
    validation_lines: Path
    """Examples that choose the checkpoint, never the test set; of lines with a split, `val`."""
    images: Path | None = None
    """Folder of the images; none: that of the lines."""


DataConfig = Annotated[
    ScenesDataConfig | VqaDataConfig | LinesDataConfig, Field(discriminator="kind")
]


class _SelectorConfig(Config):
    dim: int = Field(default=512, ge=2)
    """Internal width."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of its attention to the question."""
    diverse: bool = True
    """Lower the score of tokens that resemble a better one."""
    redundancy: Literal["peaks", "mmr"] = "peaks"
    """What a better one is: any with a higher score (density peaks), or one that was picked before
    (mmr: relevance less redundancy, with learned relevance and weight)."""

    def without_effect(self) -> dict[str, str]:
        """Settings of parts that are not there."""
        return {} if self.diverse else {"redundancy": "diverse is false"}


class MergerConfig(_SelectorConfig):
    """Stage 1: merge the vision tokens before the language model."""

    kind: Literal["simple", "question_aware"] = "simple"
    """Whether the scores depend on the question."""
    ratio: float | None = Field(default=None, gt=0, le=1)
    """Share of the tokens to keep; none: a half, or the budget."""
    budget: int | None = Field(default=None, ge=1)
    """Number of tokens to keep; must agree with the ratio if both are given."""

    def without_effect(self) -> dict[str, str]:
        """The heads of the attention to the question, if there is none."""
        unused = super().without_effect()
        if self.kind == "simple":
            unused["num_heads"] = "merger.kind is simple, which does not read the question"
        return unused

    def resolve(self, num_tokens: int) -> int:
        """Return how many of `num_tokens` are kept."""
        ratio = 0.5 if self.ratio is None and self.budget is None else self.ratio
        budget = self.budget
        if ratio is not None:
            rounded = max(1, math.floor(ratio * num_tokens + 0.5))
            if budget is not None and budget != rounded:
                raise ConfigError(
                    f"merger.ratio {ratio} of {num_tokens} tokens is {rounded}, but merger.budget "
                    f"is {budget}; give one of them, or make them agree"
                )
            budget = rounded
        assert budget is not None
        if budget > num_tokens:
            raise ConfigError(
                f"merger.budget: got {budget}, expected at most {num_tokens}, the "
                "number of vision tokens of the host"
            )
        return budget


class PrunersConfig(_SelectorConfig):
    """Stage 2: drop tokens at the input of some layers of the language model."""

    kind: Literal["cross_attention", "simple"] = "cross_attention"
    """How tokens are scored: by cross-attention to the question, or without it."""
    layers: tuple[int, ...] | None = None
    """Layers to cut at; none: at 1/16, 1/4 and 1/2 of the depth."""
    budgets: tuple[int, ...] | None = None
    """Tokens that each cut keeps; none: evenly from 69 % to 35 % of the merged tokens (200 to 100
    of 288)."""

    def without_effect(self) -> dict[str, str]:
        """The heads of the attention to the question, if there is none."""
        unused = super().without_effect()
        if self.kind == "simple":
            unused["num_heads"] = "pruners.kind is simple, which does not read the question"
        return unused

    def resolve(self, merged: int, num_layers: int) -> tuple[tuple[int, int], ...]:
        """Return (layer, budget) of every cut."""
        layers = self.layers
        if layers is None:
            layers = tuple(sorted({max(1, round(depth * num_layers)) for depth in DEPTHS}))
            layers = tuple(layer for layer in layers if layer < num_layers)
        if list(layers) != sorted(set(layers)) or any(not 0 < at < num_layers for at in layers):
            raise ConfigError(
                f"pruners.layers: got {list(layers)}, expected rising layers from 1 to "
                f"{num_layers - 1}: the host has {num_layers}, and layer 0 is never cut"
            )
        budgets = self.budgets
        if budgets is None:
            steps, first, last = max(1, len(layers) - 1), PROPORTIONS[0], PROPORTIONS[-1]
            parts = (first + (last - first) * i / steps for i in range(len(layers)))
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
                    "a cut cannot keep more than the one before it"
                )
            supply = budget
        return tuple(zip(layers, budgets, strict=True))


class DiscriminatorConfig(Config):
    """The discriminator; used only if losses.adversarial has a weight."""

    layers: tuple[int, ...] = Field(default=(-1, -3, -5), min_length=1)
    """Layers of the language model whose outputs it compares; losses.hidden uses them too."""
    dim: int = Field(default=512, ge=2)
    """Internal width."""
    reinit_prob: float = Field(default=0.01, ge=0, le=1)
    """Probability per step that its weights and optimiser state are reset."""
    spectral_norm: bool = False
    """Keep every layer's largest singular value at 1."""


class LossesConfig(Config):
    """Weights of the losses; none: the default of the objective."""

    task: float | None = Field(default=None, ge=0)
    """Cross-entropy of the answer (distill 1, adversarial 25)."""
    kl: float | None = Field(default=None, ge=0)
    """KL(unpruned model || pruned model) at the answer (distill 1)."""
    hidden: float | None = Field(default=None, ge=0)
    """Squared distance of their text states, relative to the unpruned ones (distill 0.5)."""
    attention: float | None = Field(default=None, ge=0)
    """KL(attention || softmax(scores)): every stage ranks vision tokens as the unpruned model
    attends to them when it begins to answer (0)."""
    adversarial: float | None = Field(default=None, ge=0)
    """Fool the discriminator (adversarial 1)."""
    sparsity: float | None = Field(default=None, ge=0)
    """Keep the mean of sigmoid(score) near the kept ratio (1e-4)."""

    def resolve(self, objective: str) -> dict[str, float]:
        """Return the weights of all losses."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return _WEIGHTS[objective] | given


class TemperatureConfig(AnnealConfig):
    """Temperature of the soft masks: falls linearly from start to end, then stays."""

    @model_validator(mode="after")
    def _falls(self) -> "TemperatureConfig":
        if not 0 < self.end <= self.start:
            raise ValueError(f"expected 0 < end <= start, got start {self.start}, end {self.end}")
        return self


def _adamw(lr: float) -> OptimizerConfig:
    return OptimizerConfig(lr=lr, schedule=ScheduleConfig(kind="cosine", warmup=0.1))


class OptimConfig(Config):
    """One AdamW per part: 10 % warm-up, then cosine."""

    merger: OptimizerConfig = _adamw(2e-5)
    """Optimiser of the token merger."""
    pruners: OptimizerConfig = _adamw(2e-5)
    """Optimiser of the layer pruners."""
    discriminator: OptimizerConfig = _adamw(5e-4)
    """Optimiser of the discriminator."""


class TokensTrainConfig(Config):
    """Training of merger, pruners and, if its loss has a weight, discriminator."""

    task: Literal["tokens.train"] = "tokens.train"
    """Kind of this config."""
    train: TrainConfig = TrainConfig(name="tokens", monitor="accuracy_hard", mode="max")
    """Training loop."""
    epochs: float | None = Field(default=None, gt=0)
    """Number of passes over the data, instead of train.total_steps."""
    host: HostConfig = HostConfig()
    """Frozen vision-language model."""
    data: DataConfig = ScenesDataConfig()
    """Questions and answers."""
    merger: MergerConfig | None = MergerConfig()
    """Stage 1; null: none."""
    pruners: PrunersConfig | None = PrunersConfig()
    """Stage 2; null: none."""
    scales: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1.0,), min_length=1)
    """Every step multiplies all budgets by one of these, in turn: one plan for several budgets."""
    size_bias: bool = True
    """Add log(size) of a merged token to the attention logits."""
    positions: Literal["original", "reindex"] = "original"
    """Whether kept tokens keep their original positions."""
    mask_mode: Literal["straight_through", "soft"] = "straight_through"
    """Hard masks with the gradient of soft ones, or soft masks."""
    mask_acts_on: Literal["keys", "states"] = "keys"
    """Masks bias attention, or scale hidden states (kept for comparison: it trains badly)."""
    temperature: TemperatureConfig = TemperatureConfig()
    """Temperature of the soft masks."""
    objective: Literal["distill", "adversarial"] = "distill"
    """Imitate the unpruned model, or fool a discriminator; sets the default loss weights."""
    losses: LossesConfig = LossesConfig()
    """Loss weights that differ from those of the objective."""
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    """Discriminator of the adversarial loss."""
    optim: OptimConfig = OptimConfig()
    """Optimisers, one per part."""
    search: SearchConfig | None = None
    """The section that `eligo search` reads; not used in training."""

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """Translate the sections of the two-stage pruning design."""
        return from_two_stage_design(layer)

    @model_validator(mode="after")
    def _check(self) -> "TokensTrainConfig":
        if self.merger is None and self.pruners is None:
            raise ValueError("nothing to train: merger and pruners are both null")
        if self.epochs is not None and isinstance(self.data, ScenesDataConfig):
            steps = self.steps_of(self.data.examples)
            train = self.train.model_copy(update={"total_steps": steps})
            object.__setattr__(self, "train", train)  # frozen only after validation
        return self

    def steps_of(self, num_examples: int) -> int:
        """Return the number of steps of `epochs` passes over the data."""
        return max(1, math.ceil((self.epochs or 1) * num_examples / self.train.batch_size))

    def without_effect(self) -> dict[str, str]:
        """Keys of parts, losses and counts that this training does not use."""
        unused = {}
        if self.epochs is not None:
            unused["train.total_steps"] = "epochs sets it"
        elif isinstance(self.data, ScenesDataConfig) and self.host.model in (None, "vlm"):
            unused["data.examples"] = "it counts for epochs, which is not set"
        if self.merger is None:
            unused |= dict.fromkeys(("size_bias", "optim.merger"), "merger is null")
        if self.pruners is None:
            unused["optim.pruners"] = "pruners is null"
        weights = self.weights
        if not weights["adversarial"]:
            keys = ["optim.discriminator"]
            keys += [f"discriminator.{key}" for key in ("dim", "reinit_prob", "spectral_norm")]
            keys += [] if weights["hidden"] else ["discriminator.layers"]
            reason = f"no discriminator: losses.adversarial is 0 (objective {self.objective})"
            unused |= dict.fromkeys(keys, reason)
        if None not in self.losses.model_dump().values():
            unused["objective"] = "losses sets all weights"
        return unused

    @property
    def weights(self) -> dict[str, float]:
        """Weights of all losses."""
        return self.losses.resolve(self.objective)

    def schedule(self, num_tokens: int, num_layers: int, num_text: int = 100) -> Schedule:
        """Return the token counts for a host of this size; raise if they do not fit."""
        try:
            merged = num_tokens if self.merger is None else self.merger.resolve(num_tokens)
            cuts = () if self.pruners is None else self.pruners.resolve(merged, num_layers)
        except ConfigError as error:
            if self.host.model is not None or self.host.random is not None:
                raise
            raise ConfigError(
                f"{error}. No host.model is set, so this is the tiny LLaVA that comes with eligo; "
                "name the model to prune, e.g. host.model: llava-hf/llava-1.5-7b-hf, or its folder"
            ) from None
        return Schedule(num_tokens, merged, cuts, num_text, num_layers)

    def build(self) -> Any:
        """Build the task for the training loop."""
        from eligo.tokens.training.task import TokensTask, with_counted_steps

        return TokensTask(with_counted_steps(self))

    def smoke(self) -> "TokensTrainConfig":
        """Return a run of two steps; for scenes also with a tiny host and small images."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        changes = {
            "data.validation": min(4, self.data.validation), "epochs": None,
            "train.batch_size": min(SMOKE_BATCH, self.train.batch_size),
            "train.gradient_accumulation": 1,
        }  # fmt: skip
        return self.replace(SMOKE | changes)

    def tiny(self) -> "TokensTrainConfig":
        """Return the same run on 16 vision tokens, in a narrow random host."""
        layers = max((5, *((self.pruners and self.pruners.layers) or ()))) + 1
        scenes = {"kind": "scenes", "scenes": {"height": 56, "width": 56}, "questions_per_image": 1}
        changes: dict[str, Any] = {
            "train.total_steps": 2, "train.batch_size": 2, "train.evaluate_every": 2,
            "train.checkpoint_every": 2, "train.log_every": 1, "train.precision": "no",
            "train.init_from": None, "epochs": None,
            "train.gradient_accumulation": 1, "host.model": None, "host.dtype": "float32",
            "host.random": RandomHostConfig(image_size=56, layers=layers).model_dump(),
            "data": scenes | {"validation": 2}, "discriminator.dim": 8,
        }  # fmt: skip
        if self.merger is not None:
            ratio = self.merger.ratio or 0.5
            changes |= {"merger.dim": 8, "merger.ratio": ratio, "merger.budget": None}
        if self.pruners is not None:
            changes |= {"pruners.dim": 8, "pruners.budgets": None}
        return self.replace(changes)


class SweepConfig(Config):
    """Methods and plans to compare, their budgets, and the questions they all answer."""

    task: Literal["tokens.sweep"] = "tokens.sweep"
    """Kind of this config."""
    methods: tuple[str, ...] = ("random", "uniform", "pool", "tome", "divprune", "fastv", "oracle")
    """Training-free methods, with options after a colon: `tome:rounds=8`."""
    plans: tuple[str, ...] = ()
    """Folders of plans, checkpoints or training runs, or names of shipped plans; each has its own
    budgets."""
    budgets: tuple[Whole, ...] = (192, 64)
    """Numbers of vision tokens that each method keeps."""
    layer: int = Field(default=2, ge=1)
    """Layer at which methods cut that work only inside the language model."""
    split: Literal["validation", "test"] = "validation"
    """Split of the scenes: validation to choose by, test to report."""
    questions: int = Field(default=36, ge=1)
    """Number of questions, from all families in turn."""
    scenes: SceneConfig = SceneConfig()
    """Settings of the scenes."""
    host: HostConfig = HostConfig()
    """Model to prune."""
    max_new_tokens: int = Field(default=4, ge=1)
    """Maximum length of an answer."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Number of training scenes on which the blind baseline is fitted."""
    batch_size: int = Field(default=12, ge=1)
    """Prompts in one call of `generate`."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""

    @property
    def shared_settings(self) -> dict[str, Any]:
        """Settings that all variants share; results with other settings are not comparable."""
        per_variant = {"methods", "plans", "budgets", "layer", "batch_size", "device"}
        return self.model_dump(mode="json", exclude={"task", *per_variant})

    def smoke(self) -> "SweepConfig":
        """Return the same sweep on 16 vision tokens of a narrow random host."""
        small = RandomHostConfig(image_size=56, layers=self.layer + 1)
        return self.replace(
            {
                "budgets": [9, 4], "questions": 6, "blind_scenes": 64,
                "scenes.height": 56, "scenes.width": 56,
                "host": {"random": small.model_dump()}, "plans": [], "device": "cpu",
            }
        )  # fmt: skip


# ---- A vision-language model from parts


class FinetuneDataConfig(Config):
    """Photos with questions, captions or both; splits are those of the files."""

    images: Path
    """Folder of the images."""
    questions: Path | None = None
    """JSON lines with image, question, answers and split (train, val, test)."""
    captions: Path | None = None
    """Captions in Karpathy's form: a JSON file with filenames, splits and sentences."""
    caption_prompt: str = "describe the picture."
    """Question that a caption answers."""
    flip: bool = True
    """Mirror half of the training photos, but none with "left" or "right" in its texts."""
    validation: int = Field(default=1000, ge=1)
    """Number of validation photos; they choose the checkpoint."""
    cache_gb: float = Field(default=16.0, ge=0)
    """Keep the tower's features of all photos in memory if they need at most this many GB."""
    num_workers: int | None = Field(default=None, ge=0)
    """Worker processes that read images; none: as many as the cores allow."""

    @model_validator(mode="after")
    def _check(self) -> "FinetuneDataConfig":
        if self.questions is None and self.captions is None:
            raise ValueError("expected questions, captions or both, got neither")
        return self


class LoraSettings(Config):
    """LoRA in all linear layers of the language model."""

    rank: int = Field(default=64, ge=1)
    """Rank of the update of each layer."""
    alpha: int = Field(default=128, ge=1)
    """The update is multiplied by alpha / rank."""
    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Share of the inputs dropped in training."""


def _finetuning(lr: float) -> OptimizerConfig:
    schedule = ScheduleConfig(kind="cosine", warmup=60)
    return OptimizerConfig(lr=lr, betas=(0.9, 0.98), schedule=schedule)


class FinetuneOptimConfig(Config):
    """One AdamW per part."""

    projector: OptimizerConfig = _finetuning(1e-3)
    """Optimiser of the projector."""
    adapter: OptimizerConfig = _finetuning(4e-4)
    """Optimiser of the LoRA matrices."""


class FinetuneConfig(Config):
    """Training of projector and language model on photos."""

    task: Literal["tokens.finetune"] = "tokens.finetune"
    """Kind of this config."""
    train: TrainConfig = TrainConfig(name="photos", monitor="accuracy", mode="max")
    """Training loop."""
    epochs: float | None = Field(default=14, gt=0)
    """Number of passes over the photos; none: train.total_steps counts."""
    host: HostConfig
    """The model to train, as `eligo tokens build` writes it."""
    data: FinetuneDataConfig
    """Photos, questions and captions."""
    lora: LoraSettings = LoraSettings()
    """LoRA in the language model."""
    optim: FinetuneOptimConfig = FinetuneOptimConfig()
    """Optimisers, one per part."""
    compile: bool = False
    """Compile the layers of the language model, on a GPU only: a minute once, then faster steps."""

    def build(self) -> Any:
        """Build the task for the training loop."""
        from eligo.tokens.training.finetune import FinetuneTask

        return FinetuneTask(self)

    def smoke(self) -> "FinetuneConfig":
        """Return a run of two steps."""
        small = {"train.batch_size": 2, "data.validation": 4, "data.cache_gb": 0, "epochs": None}
        return self.replace(SMOKE | small)

    def without_effect(self) -> dict[str, str]:
        """Steps beside epochs, and what belongs to captions."""
        unused = {} if self.epochs is None else {"train.total_steps": "epochs sets it"}
        if self.data.captions is None:
            unused["data.caption_prompt"] = "data.captions is not given"
        return unused
