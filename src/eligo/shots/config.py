"""All configs of the family: sampler, host, teacher, pointer selectors, training. Without torch.

Defaults of the pointer selectors and of their training are those of the published pointer-selector
designs (docs/sources.md). Where a design contradicts itself, we follow its table: V2 smooths labels
by 0.1 (its text says 0.2), and its width is 128 (its 0.59 M parameters are those of width 256).
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed
from eligo.shots.compat import translate_flags
from eligo.train.config import SMOKE, TrainConfig

Objective = Literal["gain", "actual", "logprob"]
State = Literal["none", "gate", "gru"]
SamplerKind = Literal["nearest_random", "nearest", "random", "text", "image", "mix"]


class SamplerConfig(Config):
    """Which examples of a pool are candidates for a query, in teaching, training and inference."""

    kind: SamplerKind = "nearest_random"
    """nearest_random: a quarter picked by MMR from the whole pool, a quarter the nearest, the rest
    random; nearest: the same without random ones; random; text, image: the nearest by that view;
    mix: half random, a quarter text, the rest image."""
    num_candidates: int = Field(default=32, ge=1)
    """Candidates of a query; fewer where the pool has fewer."""
    max_similarity: float | None = Field(default=None, ge=-1, le=1)
    """Leave out near copies: examples whose cosine with the query is larger; none: keep all."""
    seed: Seed = 0
    """Draws depend only on it and on the query's id."""


class ShotsHostConfig(Config):
    """The frozen model that reads the prompts."""

    model: str | None = None
    """Folder, shipped name or hub name (OWNER/NAME) of a vision-language model or a causal language
    model; none: no model, answers are compared by shared pairs of words (text only)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of its weights; auto: as they were saved."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens per forward pass, padding included; none: by device, 65,536 on a GPU, 4,096 on a CPU.
    Fewer are used where memory runs out."""
    batch_size: int | None = Field(default=None, ge=1)
    """Most prompts per forward pass; none: as many as batch_tokens allow."""
    url: str | None = None
    """Address of an OpenAI-compatible server that runs the model, such as http://localhost:8000/v1;
    `model` is its name there. A key comes from the environment: ELIGO_API_KEY or OPENAI_API_KEY."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds that a request to the server may take."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Most requests to the server in a minute; none: no limit."""
    parallel: int = Field(default=8, ge=1)
    """Requests to the server at a time."""
    instruction: str = ""
    """Appended to every question, such as "Answer in one word."."""
    placement: Literal["prepend", "append"] = "prepend"
    """Where the next pick goes; prepend: before the others, with the first nearest the question."""


class TeachConfig(Config):
    """Labelling of queries by a teacher."""

    task: Literal["shots.teach"] = "shots.teach"
    """Kind of run."""
    data: Path = Path("embedded")
    """Folder that `eligo shots embed` wrote: pool and queries."""
    out: Path = Path("taught")
    """Folder for records and scores; an unfinished one is continued."""
    sampler: SamplerConfig = SamplerConfig()
    """Which examples are tried."""
    host: ShotsHostConfig = ShotsHostConfig()
    """The model that scores the answers."""
    objective: Objective = "logprob"
    """Score of a pick: gain and actual in probability, logprob in mean log-probability."""
    shots: int = Field(default=6, ge=1)
    """Examples in a list."""
    beam: int = Field(default=5, ge=1)
    """Lists kept at each step."""
    beam_diversity: float = Field(default=0.0, ge=0)
    """Penalty for lists that share examples with better ones, in units of a list's value; 0: none.
    It decides which lists are kept; stored values are without it."""
    num_queries: int | None = Field(default=None, ge=1)
    """Number of queries to label, drawn by seed; none: all."""
    shard_size: int = Field(default=256, ge=1)
    """Queries per file of scores."""
    seed: Seed = 0
    """Seed for drawing queries."""
    engine: Literal["local", "ray"] = "local"
    """Run in this process, or on Ray workers."""
    num_workers: int = Field(default=1, ge=1)
    """Number of Ray workers."""
    check_data: bool = True
    """Check all examples and queries before the first call of the model; off: start at once."""
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """GPUs of each Ray worker."""

    def without_effect(self) -> dict[str, str]:
        """Settings of Ray workers without Ray, and of a host without one."""
        unused = {}
        if self.engine == "local":
            unused |= dict.fromkeys(("num_workers", "gpus_per_worker"), "engine is local, not ray")
        local = tuple(f"host.{key}" for key in ("dtype", "device", "batch_tokens", "batch_size"))
        remote = ("host.timeout", "host.requests_per_minute", "host.parallel")
        if self.host.model is None:
            unused |= dict.fromkeys(local[:2], "host.model is not set")
        if self.host.url is None:
            unused |= dict.fromkeys(remote, "host.url is not set")
        else:
            unused |= dict.fromkeys(local, "host.url is set")
        return unused


class PointerConfig(Config):
    """Settings that all pointer selectors share."""

    d_model: int = Field(default=768, ge=1)
    """Width of the embeddings."""
    hidden_dim: int = Field(default=128, ge=1)
    """Hidden width."""
    K: int = Field(default=32, ge=1)
    """Candidates to draw for a query where the data name none; the model takes any number."""
    shot_num: int = Field(default=6, ge=1)
    """Steps, unless labels or the caller give another number."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Share of features dropped in training."""
    temperature: float = Field(default=0.1, gt=0)
    """Cosines are divided by it; fixed."""
    residual: bool = True
    """Start as the nearest neighbours and learn what to add to their cosine; false: compare
    learned projections alone, as in the published designs."""


class _HeadsConfig(PointerConfig):
    num_heads: int = Field(default=4, ge=1)
    """Attention heads; must divide hidden_dim."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "_HeadsConfig":
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim: got {self.hidden_dim} for {self.num_heads} heads, expected a multiple"
            )
        return self


class PointerSelectorV0Config(_HeadsConfig):
    """A causal decoder over the query and the examples picked so far."""

    version: Literal["v0"] = "v0"
    """Version of the pointer selector."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    num_layers: int = Field(default=2, ge=1)
    """Layers of the decoder."""


class PointerSelectorV1Config(PointerConfig):
    """A bi-encoder: one cosine per candidate."""

    version: Literal["v1"] = "v1"
    """Version of the pointer selector."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""


class PointerSelectorV2Config(_HeadsConfig):
    """V1 whose query first attends to the candidates."""

    version: Literal["v2"] = "v2"
    """Version of the pointer selector."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    attn_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of attention weights dropped in training."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""


class PointerSelectorV3Config(PointerConfig):
    """V1 or V2 that also learns from the scores of the teacher's beams."""

    version: Literal["v3"] = "v3"
    """Version of the pointer selector."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    ranking_loss_type: Literal["listwise", "pairwise", "regression"] = "listwise"
    """Compare distributions, or the label with one candidate at a time, or predict the scores."""
    ranking_loss_weight: float = Field(default=0.1, ge=0)
    """Weight of the ranking loss beside cross-entropy."""
    ranking_form: Literal["corrected", "documented"] = "corrected"
    """Our corrected loss, or the one of the published design."""
    margin: float = Field(default=1.0, ge=0)
    """Margin of the label, in logits (pairwise)."""
    target_temperature: float = Field(default=1.0, gt=0)
    """Temperature of the target softmax over z-scored scores (listwise, corrected)."""
    base: Literal["v1", "v2"] = "v1"
    """Which model learns; v2 with its default attention."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""

    @model_validator(mode="after")
    def _base_fits(self) -> "PointerSelectorV3Config":
        self.v2()
        return self

    def without_effect(self) -> dict[str, str]:
        """Settings of the other ranking losses, or of all if the loss has no weight."""
        kind, form = self.ranking_loss_type, self.ranking_form
        if not self.ranking_loss_weight:
            keys = ("ranking_loss_type", "ranking_form", "margin", "target_temperature")
            return dict.fromkeys(keys, "model.ranking_loss_weight is 0")
        if kind == "regression":
            keys = ("ranking_form", "margin", "target_temperature")
            return dict.fromkeys(keys, "model.ranking_loss_type is regression")
        if kind == "pairwise":
            return {"target_temperature": "model.ranking_loss_type is pairwise"}
        unused = {"margin": "model.ranking_loss_type is listwise"}
        if form == "documented":
            unused["target_temperature"] = "model.ranking_form is documented"
        return unused

    def v2(self) -> PointerSelectorV2Config | None:
        """Return the config of the base if it is V2."""
        if self.base == "v1":
            return None
        shared = set(PointerSelectorV2Config.model_fields) - {"version"}
        return PointerSelectorV2Config(**self.model_dump(include=shared))


AnyPointerConfig = Annotated[
    PointerSelectorV0Config
    | PointerSelectorV1Config
    | PointerSelectorV2Config
    | PointerSelectorV3Config,
    Field(discriminator="version"),
]
NAMED: dict[str, AnyPointerConfig] = {
    "v0": PointerSelectorV0Config(),
    "v1": PointerSelectorV1Config(),
    "v2": PointerSelectorV2Config(),
    "v2_gru": PointerSelectorV2Config(state="gru"),
    "v3": PointerSelectorV3Config(),
    "v3_scores": PointerSelectorV3Config(
        ranking_loss_type="regression", ranking_loss_weight=10.0, hidden_dim=256, dropout=0.1
    ),
}
"""Pointer selectors by name."""
DEFAULT = "v3_scores"
"""The selector that is trained if none is chosen."""
LOSSES: Final = ("loss", "ce_loss", "ranking_loss")
"""Losses of a model's output; validation metrics of the same names."""
_MODEL = "{model}"


def model_name(model: AnyPointerConfig) -> str:
    """Return version, base (if it is not V1), `scores` (if it predicts them) and state (if any).

    >>> model_name(PointerSelectorV3Config(base="v2", state="gru"))
    'v3_v2_gru'
    """
    base, state = getattr(model, "base", "v1"), getattr(model, "state", "none")
    predicts = getattr(model, "ranking_loss_type", None) == "regression"
    parts = [model.version, base if base != "v1" else "", "scores" if predicts else ""]
    return "_".join(filter(None, [*parts, state if state != "none" else ""]))


class FitConfig(Config):
    """Settings of `LearnedSelector.fit`, with the defaults of `eligo shots train`."""

    num_epochs: int = Field(default=20, ge=1)
    """Passes over the records."""
    min_steps: int = Field(default=300, ge=1)
    """Minimum number of steps; few records are repeated more often."""
    batch_size: int = Field(default=64, ge=1)
    """Records in one step; fewer if there are fewer."""
    lr: float = Field(default=5e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decoupled weight decay."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the records (whole groups) held out to choose the best step."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a new best; none: never."""
    seed: Seed = 0
    """Seed of weights, split, candidates and dropout."""


class SelectorTrainConfig(TrainConfig):
    """The training loop and its optimiser."""

    name: str = f"shots_{_MODEL}"
    """Name of the run: its folder is out/name. {model} becomes version, base and state of the
    model, such as v3 or v2_gru."""
    num_epochs: int | None = Field(default=20, ge=1)
    """Passes over the records; sets total_steps, and evaluates once in each. None: use
    total_steps."""
    min_steps: int = Field(default=300, ge=1)
    """Minimum number of steps if num_epochs is set: few records are repeated more often, with 20
    evaluations and without early stopping."""
    batch_size: int = Field(default=64, ge=1)
    """Records in one step; fewer if there are fewer."""
    lr: float = Field(default=5e-3, gt=0)
    """Peak learning rate of AdamW; 5 % warm-up, then cosine. The published one is 1e-4."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decoupled weight decay."""
    monitor: str = "ndcg"
    """Validation metric that chooses the best checkpoint; ndcg becomes mrr if no held-out
    query has different scores for its candidates."""
    mode: Literal["min", "max"] = "max"
    """Whether the monitored metric should fall or rise."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a new best; none: never, since trainings are short
    and improve until the learning rate has fallen."""

    @model_validator(mode="after")
    def _losses_fall(self) -> "SelectorTrainConfig":
        if self.monitor in LOSSES and self.mode == "max":
            raise ValueError(
                f"mode: got max for the monitor {self.monitor}, expected min (--train.mode min)"
            )
        return self


class RecordsConfig(Config):
    """The records to learn from."""

    path: Path = Path("taught")
    """Folder that `eligo shots teach` wrote, or a JSON file of the V3 design or of Lever-LM (or the
    folder it is in)."""
    embedded: Path | None = None
    """Folder that `eligo shots embed` wrote; none: the one that the teacher used."""
    split: str | None = None
    """Where a folder holds several: the subfolder, or part of the file's name."""
    num_anchors: int | None = Field(default=None, ge=1)
    """Number of queries to learn from, drawn by seed; none: all."""
    sampler: SamplerKind | None = None
    """How candidates are drawn; none: as the teacher did, at random for files of other programs."""
    objective: Objective | None = None
    """Score of a pick; none: the teacher's."""
    labels: Literal["best", "weighted"] = "best"
    """Learn the best list, or all beams by their softmax weight."""
    on_bad_label: Literal["error", "ignore"] = "error"
    """Labels that repeat or are not in the pool: raise, or leave them out and count them."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the queries (whole groups) held out to choose the best step."""


class ShotsTrainConfig(Config):
    """A training run of a pointer selector."""

    task: Literal["shots.train"] = "shots.train"
    """Kind of run."""
    model: AnyPointerConfig  # no default: another version would inherit its label smoothing
    """The model; d_model becomes the width of the embeddings."""
    train: SelectorTrainConfig = SelectorTrainConfig()
    """The training loop."""
    data: RecordsConfig = RecordsConfig()
    """The records to learn from."""

    def without_effect(self) -> dict[str, str]:
        """Steps beside epochs (total_steps is reported in training), and the width."""
        unused = {"model.d_model": "it becomes the width of the embeddings"}
        if self.train.num_epochs is None:
            unused["train.min_steps"] = "train.num_epochs is null"
        else:
            reason = "train.num_epochs sets it"
            unused |= dict.fromkeys(("train.evaluate_every", "train.checkpoint_every"), reason)
        return unused

    @field_validator("train")
    @classmethod
    def _name_the_model(cls, train: SelectorTrainConfig, info: Any) -> SelectorTrainConfig:
        if _MODEL not in train.name or "model" not in info.data:  # a wrong model is reported
            return train
        return train.replace({"name": train.name.replace(_MODEL, model_name(info.data["model"]))})

    def build(self) -> Any:
        """Read the records and return the task for the training loop."""
        from eligo.shots.training.train import load_records, selector_task

        return selector_task(self, load_records(self.data, self.model.K, self.train.seed))

    def smoke(self) -> "ShotsTrainConfig":
        """Return the config of a run of two steps on the same records."""
        return self.replace(SMOKE | {"train.num_epochs": None})

    @staticmethod
    def words(args: list[str]) -> list[str]:
        """Translate the flags of the published training command."""
        return translate_flags(args)
