"""What the study compares: its config, and every variant as changes of the config `pixels/scenes`.

- twins: two names for one appearance, one of them per image; only the tags
  show which one applies.
- binding: phrases tie appearances to ten nonce classes, anew in every image.
- depth: camouflaged objects that only depth shows, and flat pictures of objects.

Imports no torch.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, field_validator

from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.config.problems import did_you_mean
from eligo.pixels.config import PixelsTrainConfig

Part = Literal["twins", "binding", "depth"]
PARTS: tuple[Part, ...] = ("twins", "binding", "depth")
_WIDER = {"head.channels": 544, "head.ham_channels": 544}
"""About as many parameters without words as the small model has with them."""

# Binding tests which phrase an object belongs to, not how small it can be: all are large. Small
# numbers of phrases come more often, because training first succeeds with four; until then all
# variants stay at chance level, and a higher learning rate seemed to keep them there longer.
_SETTINGS: dict[Part, dict[str, Any]] = {
    "twins": {"data.scenes.camouflaged": 0, "data.scenes.painted": 0, "depth_dropout": 0.0},
    "binding": {
        "data.scenes.camouflaged": 0, "data.scenes.painted": 0, "data.scenes.twins": False,
        "data.scenes.decoys": 0, "data.scenes.min_objects": 4, "data.scenes.max_objects": 4,
        "data.scenes.radii": (0.11, 0.118, 0.125), "data.scenes.binding": True,
        "data.phrases": (4, 4, 8, 8, 16, 32), "num_classes": 13, "depth_dropout": 0.0,
        "text_dropout": 0.0, "optimizer.lr": 1e-3,
    },
    "depth": {"data.scenes.twins": False, "depth_dropout": 0.0},
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    part: Part
    changes: dict[str, Any] = field(default_factory=dict)
    has_target: bool = False
    """Whether a target depends on it: it is then trained with all seeds."""
    learned_tokens: int = 0
    """Number of learned vectors in the place of words."""


def _both_sides(**settings: Any) -> dict[str, Any]:
    return {f"sam.{side}.{k}": v for side in ("encoder", "decoder") for k, v in settings.items()}


def _grid() -> dict[str, Variant]:
    """Binding: similarity x learnable x scale x form."""
    variants = {}
    for form in ("gated", "legacy"):
        for similarity in ("cosine", "dot"):
            for learns in (True, False):
                for scale in (14.285714, 1.0):
                    name = f"binding_{form}_{similarity}_{'learned' if learns else 'fixed'}"
                    name = f"{name}_{scale:.3g}"
                    settings = _both_sides(
                        use_cosine=similarity == "cosine", learnable_temp=learns, logit_init=scale
                    )
                    changes = {"sam.form": form, **settings}
                    variants[name] = Variant("binding", changes, name == BINDING_TARGET)
    return variants


def _controls(part: Part, tokens: int) -> dict[str, Variant]:
    """No words, and inputs in their place that carry no information about the image."""
    return {
        f"{part}_no_words": Variant(part, {"preset": 0}, has_target=True),
        f"{part}_constant_words": Variant(part, {"text.source": "labels"}, has_target=True),
        f"{part}_learned_tokens": Variant(part, {}, has_target=True, learned_tokens=tokens),
        f"{part}_more_parameters": Variant(part, {"preset": 0, **_WIDER}, has_target=True),
        f"{part}_encoder_only": Variant(part, {"sam.decoder.stages": ()}),
        f"{part}_decoder_only": Variant(part, {"sam.encoder.stages": ()}),
    }


BINDING_TARGET = "binding_gated_cosine_learned_14.3"
CONTROLS = ("constant_words", "learned_tokens", "more_parameters")
VARIANTS: dict[str, Variant] = {
    "twins_tags": Variant("twins", {}, has_target=True),
    **_controls("twins", 14),
    "twins_no_dropout": Variant("twins", {"text_dropout": 0.0}),
    **{f"twins_preset_{n}": Variant("twins", {"preset": n}) for n in (2, 3, 4, 5, 6)},
    **_grid(),
    **_controls("binding", 16),
    "binding_default": Variant("binding", {}),
    "binding_legacy_default": Variant("binding", {"sam.form": "legacy"}),
    "depth_rgb_only": Variant("depth", {"preset": 0, "inputs.depth": "none"}, has_target=True),
    "depth_prior": Variant("depth", {"preset": 0, "encoder.depth_stem": False}),
    "depth_stem": Variant("depth", {"preset": 0}, has_target=True),
}
"""Every variant by name."""
FOLLOW_UPS = {
    # As many parameters as twins_more_parameters, but in the feed-forward networks of the encoder.
    "twins_wider_blocks": Variant(
        "twins", {"preset": 0, "encoder.ffn_ratios": (14, 14, 13, 13)}, has_target=True
    )
}
"""Variants that are trained only when `only` names them."""


class StudyConfig(Config):
    """What the study trains and measures."""

    task: Literal["pixels.study"] = "pixels.study"
    """Kind of config."""
    parts: tuple[Part, ...] = PARTS
    """twins (and noisy tags), binding, depth."""
    only: tuple[str, ...] = ()
    """Names of the variants to train; none: all of these parts."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Seeds of variants with a target; the others are trained with the first one only."""
    steps: int = Field(default=1500, ge=1)
    """Steps of every variant of twins and depth."""
    binding_steps: int = Field(default=2500, ge=1)
    """Steps of every variant of binding."""
    train_images: int = Field(default=4000, ge=1)
    """Training scenes of every variant."""
    validation_images: int = Field(default=500, ge=1)
    """Scenes that choose the checkpoint of every variant."""
    test_images: int = Field(default=500, ge=2)
    """Scenes on which variants are compared."""
    evaluations: int = Field(default=3, ge=1)
    """Evaluations on the validation scenes in each run."""
    resamples: int = Field(default=2000, ge=10)
    """Resamples of the bootstrap."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes of the configs of all variants, by dotted key."""

    @field_validator("only")
    @classmethod
    def _known(cls, only: tuple[str, ...]) -> tuple[str, ...]:
        for name in only:
            if name not in VARIANTS | FOLLOW_UPS:
                raise ValueError(f"got {name!r}{did_you_mean(name, VARIANTS | FOLLOW_UPS)}")
        return only

    def quick(self) -> "StudyConfig":
        """Return a smoke run that takes minutes on a CPU; its numbers mean nothing."""
        tiny = {
            "encoder.dims": (8, 16, 24, 32), "encoder.depths": (1, 1, 1, 1),
            "head.channels": 16, "head.ham_channels": 16, "head.rank": 4, "text_dim": 32,
            "text.encoder.dim": 32, "train.batch_size": 4,
            "data.scenes.height": 48, "data.scenes.width": 64,
        }  # fmt: skip
        limits = {
            "steps": 2, "binding_steps": 2, "train_images": 8, "evaluations": 1,
            "validation_images": 4, "test_images": 4, "resamples": 100,
        }  # fmt: skip
        smaller = {key: min(getattr(self, key), limit) for key, limit in limits.items()}
        return self.replace(smaller | {"seeds": self.seeds[:2], "changes": self.changes | tiny})

    def variants(self) -> dict[str, Variant]:
        """Return the variants to train."""
        known = VARIANTS | FOLLOW_UPS
        names = self.only or [
            name for name, variant in VARIANTS.items() if variant.part in self.parts
        ]
        return {name: known[name] for name in names}

    def jobs(self) -> list[tuple[str, int]]:
        """Return variant and seed of every run, those with a target first."""
        variants = self.variants()
        first = [(name, s) for s in self.seeds for name, v in variants.items() if v.has_target]
        others = [(name, self.seeds[0]) for name, v in variants.items() if not v.has_target]
        return first + others

    def run(self, name: str, seed: int) -> PixelsTrainConfig:
        """Return the training config of a variant."""
        variant = (VARIANTS | FOLLOW_UPS)[name]
        steps = self.binding_steps if variant.part == "binding" else self.steps
        base = load_config(
            PixelsTrainConfig,
            "pixels/scenes",
            {
                "train.name": f"{name}_{seed}", "train.seed": seed, "train.total_steps": steps,
                "train.evaluate_every": max(1, steps // self.evaluations),
                "train.checkpoint_every": steps, "train.keep_checkpoints": 1,
                "data.train_images": self.train_images,
                "data.validation_images": self.validation_images,
                "data.test_images": self.test_images,
            },
        )  # fmt: skip
        # Presets and settings of SAM come last, as on the command line.
        sam = {k: v for k, v in variant.changes.items() if k == "preset" or k.startswith("sam.")}
        others = {k: v for k, v in variant.changes.items() if k not in sam}
        return base.replace(self.changes | _SETTINGS[variant.part] | others).replace(sam)
