"""What the pointer selectors are, as configs: the tables of the V2 and V3 guides. Imports no torch.

Where a guide contradicts itself its table counts: V2 smooths labels by 0.1 (its text says 0.2), and
its width is 128 (its 0.59 M parameters are those of width 256).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eligo.config import Config

State = Literal["none", "gate", "gru"]


class PointerConfig(Config):
    """What all versions share."""

    d_model: int = Field(default=768, ge=1)
    """Width of the embeddings that come in."""
    hidden_dim: int = Field(default=128, ge=1)
    """Width inside."""
    K: int = Field(default=32, ge=1)
    """Candidates to draw for a query where the data name none; the model takes any number."""
    shot_num: int = Field(default=6, ge=1)
    """Steps where neither labels nor the caller say how many."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Share of features dropped in training."""
    temperature: float = Field(default=0.1, gt=0)
    """Cosines are divided by it; fixed."""


class _HeadsConfig(PointerConfig):
    num_heads: int = Field(default=4, ge=1)
    """Attention heads; they share hidden_dim evenly."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "_HeadsConfig":
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim: got {self.hidden_dim} for {self.num_heads} heads, expected a multiple"
            )
        return self


class PointerSelectorV0Config(_HeadsConfig):
    """A causal decoder over the query and the examples picked so far."""

    version: Literal["v0"] = "v0"
    """Which of the four."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    num_layers: int = Field(default=2, ge=1)
    """Layers of the decoder."""


class PointerSelectorV1Config(PointerConfig):
    """A bi-encoder: one cosine per candidate."""

    version: Literal["v1"] = "v1"
    """Which of the four."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""


class PointerSelectorV2Config(_HeadsConfig):
    """V1, whose query first looks at the candidates."""

    version: Literal["v2"] = "v2"
    """Which of the four."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    attn_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of attention weights dropped in training."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""


class PointerSelectorV3Config(PointerConfig):
    """V1 or V2, which also learns from the scores of the teacher's beams."""

    version: Literal["v3"] = "v3"
    """Which of the four."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Share of the target spread evenly over all valid candidates."""
    ranking_loss_type: Literal["listwise", "pairwise"] = "listwise"
    """Compare distributions, or the label with one candidate at a time."""
    ranking_loss_weight: float = Field(default=0.1, ge=0)
    """Weight of the ranking loss beside cross-entropy."""
    ranking_form: Literal["corrected", "documented"] = "corrected"
    """Our form, or the guide's."""
    margin: float = Field(default=1.0, ge=0)
    """By how many logits the label should win (pairwise)."""
    target_temperature: float = Field(default=1.0, gt=0)
    """Of the target softmax over z-scored scores (listwise, corrected)."""
    base: Literal["v1", "v2"] = "v1"
    """Which model learns; v2 with its default attention."""
    state: State = "none"
    """How a pick changes the query: none (scores never change), gate, gru."""

    @model_validator(mode="after")
    def _base_fits(self) -> "PointerSelectorV3Config":
        self.v2()
        return self

    def v2(self) -> PointerSelectorV2Config | None:
        """What the base is when it is V2."""
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
