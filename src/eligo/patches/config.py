"""What a retrieval model is: two encoders and a way to match them.

Needs no torch: it is read for `--help`.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eligo.config import Config

_Deviation = Annotated[float, Field(gt=0)]


def _multiple(name: str, size: int, of: str, step: int) -> None:
    if size % step:
        raise ValueError(f"{name}: got {size}, expected a multiple of {step}, {of}")


class SmallVisionConfig(Config):
    """A ViT to train from scratch."""

    image_size: int = Field(default=168, ge=8)
    """Pixels a side; a multiple of patch_size."""
    patch_size: int = Field(default=12, ge=1)
    """Pixels a side of a patch."""
    width: int = Field(default=128, ge=4)
    """Width; a multiple of heads."""
    layers: int = Field(default=6, ge=1)
    """Layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _check(self) -> "SmallVisionConfig":
        _multiple("image_size", self.image_size, "patch_size", self.patch_size)
        _multiple("width", self.width, "heads", self.heads)
        return self


class SmallTextConfig(Config):
    """A BERT to train from scratch, whose words are those of the scenes."""

    width: int = Field(default=128, ge=4)
    """Width; a multiple of heads."""
    layers: int = Field(default=2, ge=1)
    """Layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _check(self) -> "SmallTextConfig":
        _multiple("width", self.width, "heads", self.heads)
        return self


class EncodersConfig(Config):
    """Images to patches and texts to words, all of one width."""

    vision: str | None = None
    """Folder or hub name of a ViT, Swin or DINOv2; none: a small ViT from scratch."""
    text: str | None = None
    """Folder or hub name of a BERT; none: a small one from scratch, for the scenes' words."""
    tokenizer: str | None = None
    """Fingerprint of the tokenizer in the folder of a saved model, written with it; none: not
    checked."""
    small_vision: SmallVisionConfig = SmallVisionConfig()
    """Sizes where vision is none."""
    small_text: SmallTextConfig = SmallTextConfig()
    """Sizes where text is none."""
    image_size: int | None = Field(default=None, ge=8)
    """Pixels a side of what a given vision model is shown; none: what it was trained with."""
    image_mean: tuple[float, float, float] | None = None
    """Mean of each colour, subtracted; none: what the vision model was trained with."""
    image_std: tuple[_Deviation, _Deviation, _Deviation] | None = None
    """Deviation of each colour, divided by; none: what the vision model was trained with."""
    backbone_lr: float = Field(default=0.1, ge=0)
    """Learning rate of a given vision or text model, as a share of the heads'."""
    embed_dim: int = Field(default=512, ge=4)
    """Width of patches and words when they are matched."""
    max_words: int = Field(default=64, ge=3)
    """Most word pieces of a text, [CLS] and [SEP] included; what is longer is cut."""
    max_dense_words: int = Field(default=160, ge=3)
    """Most word pieces of a dense caption."""


class MatchConfig(Config):
    """How patches and words become one score."""

    kind: Literal["global", "filip", "open", "paper"] = "open"
    """global: cosine of means; filip: every word its best patch and the other way round; open: SEPS
    without equations 1, 3 and 4's second term (without dense text it is LAPS); paper: SEPS."""
    dense: bool = False
    """Each image's dense caption guides the selection (open, paper)."""
    sparse_ratio: float = Field(default=0.5, gt=0, le=1)
    """Share of the patches that a text keeps; 1: no slimming."""
    aggr_ratio: float = Field(default=0.4, gt=0, le=1)
    """Tokens per kept patch."""
    top_k: int = Field(default=5, ge=1)
    """Best matches whose relevance is learned (paper)."""
    dual_aggr: bool = True
    """Fold both selections, with weights of their own (paper)."""
    beta: float = Field(default=0.25, ge=0, le=0.5)
    """Weight of the texts beside the patch's own score in equation 3 (paper)."""
    decision: Literal["topk", "bernoulli"] = "topk"
    """Keep an exact share, or draw patches in training so that the share is learned (paper)."""
    temperature: float = Field(default=1.0, gt=0)
    """Of bernoulli's draws."""
    kernel: Literal["auto", "reference", "torch", "triton"] = "auto"
    """What computes the scores."""

    @model_validator(mode="after")
    def _check(self) -> "MatchConfig":
        if self.dense and self.kind not in ("open", "paper"):
            raise ValueError(f"dense: got true with kind {self.kind}, which selects no patches")
        if self.decision == "bernoulli" and self.kind != "paper":
            raise ValueError(f"decision: bernoulli needs kind paper, got {self.kind}")
        return self


class RetrievalConfig(Config):
    """A whole retrieval model."""

    encoders: EncodersConfig = EncodersConfig()
    """Images to patches, texts to words."""
    match: MatchConfig = MatchConfig()
    """Patches and words to scores."""
