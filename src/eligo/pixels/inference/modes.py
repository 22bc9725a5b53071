"""How a model compares pixels and words is part of its weights: other wishes are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.pixels.config import PixelsConfig, SamConfig


def refuse_other_modes(where: Path, stored: PixelsConfig, asked: Mapping[str, Any]) -> None:
    """Raise if `asked` (dotted keys, as `sam.decoder.use_cosine`) is not what a model has."""
    wordless = not (stored.sam.encoder.stages or stored.sam.decoder.stages)
    if asked and wordless and not any(key.endswith(".stages") for key in asked):
        raise InputError(
            f"{where}: its weights were trained without words (preset 0), got {', '.join(asked)}; "
            "leave those flags out, or train a model with words"
        )
    for key, value in asked.items():
        found: Any = stored
        for part in key.split("."):
            found = getattr(found, part)
        if found != value:
            raise InputError(
                f"{where}: its weights were trained with {key} {found}, got {value}; leave that "
                "flag out, or train a model with it"
            )


def modes_of(sam: SamConfig) -> dict[str, Any]:
    """Every mode by its dotted key."""
    found: dict[str, Any] = {"sam.form": sam.form}
    for side, config in (("encoder", sam.encoder), ("decoder", sam.decoder)):
        found |= {
            f"sam.{side}.{name}": getattr(config, name)
            for name in ("use_cosine", "learnable_temp", "logit_init", "stages")
        }
    return found
