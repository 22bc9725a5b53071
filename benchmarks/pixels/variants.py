"""What is compared in the exam: every arm as changes of the config `pixels/scenes`.

- twins: two names for one look, one of a pair per image; only the tags tell which.
- binding: phrases tie looks to ten nonce classes, anew in every image.
- depth: camouflaged things that only depth shows, flat pictures of things.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Part = Literal["twins", "binding", "depth"]
PARTS: tuple[Part, ...] = ("twins", "binding", "depth")
_WIDER = {"head.channels": 544, "head.ham_channels": 544}
"""About as many parameters without words as the small model has with them."""

# Binding asks which phrase a thing belongs to, not how small a thing can be seen: all are large.
# Few phrases come more often, because the right one is found among four first: until then all
# arms stay at the loss of guessing, and a higher rate seemed to keep them there longer.
_WORLDS: dict[Part, dict[str, Any]] = {
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
class Arm:
    """One way to train."""

    part: Part
    own: dict[str, Any] = field(default_factory=dict)
    must: bool = False
    """Whether a must of the exam rests on it: three seeds."""
    learned_tokens: int = 0
    """So many learned vectors instead of words."""

    @property
    def changes(self) -> dict[str, Any]:
        """All changes but those of `sam()`."""
        own = {key: value for key, value in self.own.items() if not _of_sam(key)}
        return _WORLDS[self.part] | own

    def sam(self) -> dict[str, Any]:
        """Preset and modes, which lie over it."""
        return {key: value for key, value in self.own.items() if _of_sam(key)}


def _of_sam(key: str) -> bool:
    return key == "preset" or key.startswith("sam.")


def _both_sides(**modes: Any) -> dict[str, Any]:
    return {f"sam.{side}.{k}": v for side in ("encoder", "decoder") for k, v in modes.items()}


def _grid() -> dict[str, Arm]:
    """Binding: similarity x learnable x scale x form."""
    arms = {}
    for form in ("gated", "legacy"):
        for similarity in ("cosine", "dot"):
            for learns in (True, False):
                for scale in (14.285714, 1.0):
                    name = f"binding_{form}_{similarity}_{'learned' if learns else 'fixed'}"
                    modes = _both_sides(
                        use_cosine=similarity == "cosine", learnable_temp=learns, logit_init=scale
                    )
                    must = (form, similarity, learns, scale > 1) == ("gated", "cosine", True, True)
                    own = {"sam.form": form, **modes}
                    arms[f"{name}_{scale:.3g}"] = Arm("binding", own, must)
    return arms


def _controls(part: Part, tokens: int) -> dict[str, Arm]:
    """No words, and what looks like words but says nothing about the image."""
    return {
        f"{part}_no_words": Arm(part, {"preset": 0}, must=True),
        f"{part}_constant_words": Arm(part, {"text.source": "labels"}, must=True),
        f"{part}_learned_tokens": Arm(part, {}, must=True, learned_tokens=tokens),
        f"{part}_more_parameters": Arm(part, {"preset": 0, **_WIDER}, must=True),
        f"{part}_encoder_only": Arm(part, {"sam.decoder.stages": ()}),
        f"{part}_decoder_only": Arm(part, {"sam.encoder.stages": ()}),
    }


ARMS: dict[str, Arm] = {
    "twins_tags": Arm("twins", {}, must=True),
    **_controls("twins", 14),
    "twins_no_dropout": Arm("twins", {"text_dropout": 0.0}),
    **{f"twins_preset_{number}": Arm("twins", {"preset": number}) for number in (2, 3, 4, 5, 6)},
    **_grid(),
    **_controls("binding", 16),
    "binding_default": Arm("binding", {}),
    "binding_legacy_default": Arm("binding", {"sam.form": "legacy"}),
    "depth_rgb_only": Arm("depth", {"preset": 0, "inputs.depth": "none"}, must=True),
    "depth_prior": Arm("depth", {"preset": 0, "encoder.depth_stem": False}),
    "depth_stem": Arm("depth", {"preset": 0}, must=True),
}
"""Every arm by name."""
BINDING_MUST = "binding_gated_cosine_learned_14.3"
CONTROLS = ("constant_words", "learned_tokens", "more_parameters")
