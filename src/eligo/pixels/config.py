"""What a pixels model is, as configs. Sections 2-4 of the pixels specification. Imports no torch.

`SIZES` holds DFormerv2's S, B and L and our `small`, as changes of the default (S); the presets of
the temperature study are in `presets`.
"""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from eligo.config import Config
from eligo.config.bounds import Seed

Four = tuple[int, int, int, int]


def _rising(stages: tuple[int, ...], first: int) -> tuple[int, ...]:
    if list(stages) != sorted(set(stages)) or any(not first <= stage <= 3 for stage in stages):
        raise ValueError(f"expected rising stages from {first} to 3")
    return stages


class EncoderConfig(Config):
    """The DFormerv2 encoder: four stages at strides 4, 8, 16 and 32."""

    dims: Four = (64, 128, 256, 512)
    """Width of each stage."""
    depths: Four = (3, 4, 18, 4)
    """Blocks of each stage."""
    heads: Four = (4, 4, 8, 16)
    """Attention heads of each stage."""
    ranges: tuple[float, float, float, float] = (4, 4, 6, 6)
    """How far the decay rates of a stage's heads spread."""
    ffn_ratios: Four = (4, 4, 3, 3)
    """Width inside the feed-forward part of each stage, over the stage's own."""
    layer_scale: tuple[float | None, float | None, float | None, float | None] = (
        None,
        None,
        None,
        None,
    )
    """Start of the per-channel scale of each stage's branches; none: no scale."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Share of branches dropped in training at the last block; rises from 0 at the first."""
    depth_stem: bool = False
    """Also add a learned picture of the depth to the RGB image; it starts at zero."""

    @model_validator(mode="after")
    def _heads_share_widths(self) -> "EncoderConfig":
        if self.dims[0] % 2:
            raise ValueError(f"dims: got {self.dims[0]} first, expected an even number")
        for stage, (dim, depth, heads) in enumerate(
            zip(self.dims, self.depths, self.heads, strict=True)
        ):
            if depth < 1 or heads < 1 or dim % (2 * heads):
                raise ValueError(
                    f"stage {stage}: got {depth} blocks and width {dim} for {heads} heads; expected"
                    " at least one block, and an even width for every head"
                )
        return self


class SideConfig(Config):
    """How pixels and words are compared on one side; s is the multiplier of the logits."""

    use_cosine: bool
    """Compare directions (s cos) rather than dot products (s <q, k> / sqrt(d))."""
    learnable_temp: bool
    """Learn the multiplier s; else it stays at its start."""
    logit_init: float = Field(gt=0, allow_inf_nan=False)
    """Start of the multiplier s itself (not its logarithm): 1 / temperature."""

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """The name that `SimilarityScale` has for it."""
        return "cosine" if self.use_cosine else "dot"


class EncoderSideConfig(SideConfig):
    """Words in the encoder: on the attention branch of every block of some stages."""

    use_cosine: bool = False
    """Compare directions (s cos) rather than dot products (s <q, k> / sqrt(d))."""
    learnable_temp: bool = False
    """Learn the multiplier s; else it stays at its start."""
    logit_init: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Start of the multiplier s itself (not its logarithm): 1 / temperature."""
    stages: tuple[int, ...] = (1, 2, 3)
    """Stages with words, of 0-3; none: no words in the encoder."""
    groups: Four = (2, 2, 4, 2)
    """How many successive blocks of each stage share one module."""

    @field_validator("stages")
    @classmethod
    def _stages_exist(cls, stages: tuple[int, ...]) -> tuple[int, ...]:
        return _rising(stages, 0)

    @field_validator("groups")
    @classmethod
    def _groups_hold_blocks(cls, groups: Four) -> Four:
        if min(groups) < 1:
            raise ValueError("expected at least one block for every module")
        return groups


class DecoderSideConfig(SideConfig):
    """Words in the head: one module at each of some levels."""

    use_cosine: bool = True
    """Compare directions (s cos) rather than dot products (s <q, k> / sqrt(d))."""
    learnable_temp: bool = True
    """Learn the multiplier s; else it stays at its start."""
    logit_init: float = Field(default=14.285714, gt=0, allow_inf_nan=False)
    """Start of the multiplier s itself (not its logarithm): 1 / temperature."""
    stages: tuple[int, ...] = (1, 2, 3)
    """Levels with words, of 1-3; none: no words in the decoder."""
    top_m: int | None = Field(default=None, ge=1)
    """Words that each pixel and head may look at; none: all."""

    @field_validator("stages")
    @classmethod
    def _stages_exist(cls, stages: tuple[int, ...]) -> tuple[int, ...]:
        return _rising(stages, 1)


class SamConfig(Config):
    """The Semantic Alignment Module: where and how words guide pixels."""

    form: Literal["gated", "legacy"] = "gated"
    """gated: ours, an exact identity without words; legacy: the original, for its weights."""
    encoder: EncoderSideConfig = EncoderSideConfig()
    """Words in the encoder."""
    decoder: DecoderSideConfig = DecoderSideConfig()
    """Words in the head."""
    legacy_text_mask: bool = False
    """Take zero vectors for padding, as the original did (legacy only)."""

    @model_validator(mode="after")
    def _modes_agree(self) -> "SamConfig":
        if self.form == "legacy":
            return self
        if self.legacy_text_mask:
            raise ValueError("legacy_text_mask: expected form: legacy with it")
        for side in ("encoder", "decoder"):
            config: SideConfig = getattr(self, side)
            if config.learnable_temp and not 0.01 <= config.logit_init <= 100:
                raise ValueError(
                    f"{side}.logit_init: got {config.logit_init}, expected a learnable multiplier "
                    "to start within its bounds, 0.01 to 100"
                )
        return self


class HeadConfig(Config):
    """The Hamburger head."""

    channels: int = Field(default=512, ge=1)
    """Width of the head."""
    ham_channels: int = Field(default=512, ge=1)
    """Width of the matrix that is factorised."""
    rank: int = Field(default=64, ge=1)
    """Columns of its bases."""
    train_steps: int = Field(default=6, ge=1)
    """Updates of the factors in training."""
    eval_steps: int = Field(default=7, ge=1)
    """Updates of the factors otherwise."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of channels dropped before the classifier in training."""
    bases_seed: Seed = 0
    """Seed of the bases that evaluation starts from; training draws new ones each time."""


class PixelsConfig(Config):
    """RGB-D segmentation guided by words."""

    num_classes: int = Field(default=40, ge=2)
    """Classes that a pixel can have."""
    text_dim: int = Field(default=512, ge=1)
    """Width of the text encoder's vectors."""
    encoder: EncoderConfig = EncoderConfig()
    """The encoder; default: DFormerv2-S."""
    sam: SamConfig = SamConfig()
    """Where and how words guide pixels."""
    head: HeadConfig = HeadConfig()
    """The head."""


_SCALED = (None, None, 1e-6, 1e-6)
SIZES: dict[str, dict[str, Any]] = {
    "S": {},
    "B": {
        "encoder.dims": (80, 160, 320, 512),
        "encoder.depths": (4, 8, 25, 8),
        "encoder.heads": (5, 5, 10, 16),
        "encoder.ranges": (5, 5, 6, 6),
        "encoder.layer_scale": _SCALED,
    },
    "L": {
        "encoder.dims": (112, 224, 448, 640),
        "encoder.depths": (4, 8, 25, 8),
        "encoder.heads": (7, 7, 14, 20),
        "encoder.ranges": (6, 6, 6, 6),
        "encoder.layer_scale": _SCALED,
        "sam.encoder.groups": (2, 2, 8, 4),
    },
    "small": {
        "encoder.dims": (32, 64, 96, 128),
        "encoder.depths": (1, 1, 3, 1),
        "encoder.heads": (2, 2, 3, 4),
        "head.channels": 128,
        "head.ham_channels": 128,
        "head.rank": 16,
    },
}
"""Changes of the default config (which is S) that make each size."""
