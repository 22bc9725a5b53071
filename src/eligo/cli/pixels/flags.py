"""Flags shared by `pixels` commands: how pixels and words are compared, and the model.

`--sam-decoder-use-cosine` is `--sam.decoder.use_cosine`, and so on. Given with a trained model, the
flags must agree with it.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from eligo.cli.flags import Positive
from eligo.config import Config
from eligo.config.effects import reason_of
from eligo.errors import InputError
from eligo.pixels.config import PRESETS

if TYPE_CHECKING:
    from eligo.pixels.inference.segmenter import Segmenter

logger = logging.getLogger("eligo.cli")
_SIDES = ("decoder", "encoder")
_SWITCHES = ("use_cosine", "learnable_temp")


Switch = tyro.conf.FlagCreatePairsOff[bool]  # each switch has its opposite beside it


def _about(help: str, hint: str = "") -> Any:
    return tyro.conf.arg(help=help, help_behavior_hint=hint)


_DEFAULT = "(default)"
_INIT = "initial multiplier of the logits, 1 / temperature."


@dataclass(frozen=True)
class SamFlags:
    """How pixels and words are compared, in the head and in the encoder."""

    sam_decoder_use_cosine: Annotated[
        Switch, _about("Words in the head: use cosine similarity.", _DEFAULT)
    ] = False
    no_sam_decoder_use_cosine: Annotated[Switch, _about("Words in the head: use dot products.")] = (
        False
    )
    sam_decoder_learnable_temp: Annotated[
        Switch, _about("Words in the head: learn the temperature.", _DEFAULT)
    ] = False
    no_sam_decoder_learnable_temp: Annotated[
        Switch, _about("Words in the head: keep the temperature fixed.")
    ] = False
    sam_decoder_logit_init: Annotated[
        Positive | None,
        tyro.conf.DisallowNone,
        _about(f"Words in the head: {_INIT}", "(default: 14.285714)"),
    ] = None
    sam_encoder_use_cosine: Annotated[
        Switch, _about("Words in the encoder: use cosine similarity.")
    ] = False
    no_sam_encoder_use_cosine: Annotated[
        Switch, _about("Words in the encoder: use dot products.", _DEFAULT)
    ] = False
    sam_encoder_learnable_temp: Annotated[
        Switch, _about("Words in the encoder: learn the temperature.")
    ] = False
    no_sam_encoder_learnable_temp: Annotated[
        Switch, _about("Words in the encoder: keep the temperature fixed.", _DEFAULT)
    ] = False
    sam_encoder_logit_init: Annotated[
        Positive | None,
        tyro.conf.DisallowNone,
        _about(f"Words in the encoder: {_INIT}", "(default: 1.0)"),
    ] = None


Sam = Annotated[SamFlags, tyro.conf.arg(name="")]
SamCheck = Annotated[SamFlags, tyro.conf.arg(name="model must have"), tyro.conf.OmitArgPrefixes]
"""The same flags for a trained model, in a help section of their own."""
NO_FLAGS = SamFlags()


def sam_changes(flags: SamFlags) -> dict[str, Any]:
    """Return the given flags as dotted keys of a config."""
    given = {k: v for k, v in vars(flags).items() if v is not None and v is not False}
    changes: dict[str, Any] = {}
    for side in _SIDES:
        for name in _SWITCHES:
            yes, no = (f"{prefix}sam_{side}_{name}" in given for prefix in ("", "no_"))
            if yes and no:
                flag = f"sam-{side}-{name.replace('_', '-')}"
                raise InputError(f"got both --{flag} and --no-{flag}, expected one of them")
            if yes or no:
                changes[f"sam.{side}.{name}"] = yes
        if (value := given.get(f"sam_{side}_logit_init")) is not None:
            changes[f"sam.{side}.logit_init"] = value
    return changes


def report_unused(changes: dict[str, Any], config: Config) -> None:
    """Name the given flags (`sam_changes`) that have no effect with a config."""
    if os.environ.get("RANK", "0") != "0":
        return
    for key, value in changes.items():
        if reason := reason_of(config, key):
            flag = key.replace(".", "-").replace("_", "-")
            no = "no-" if value is False else ""
            logger.warning("--%s%s: has no effect here: %s", no, flag, reason)


def open_segmenter(
    model: Path | None, device: str, sam: SamFlags, preset: int | None = None
) -> "Segmenter":
    """Load a model, by default the shipped one; flags that contradict it are an error."""
    wanted = preset_changes(preset) | sam_changes(sam)
    from eligo.pixels.inference import segmenter
    from eligo.pretrained.devices import resolve_device

    folder = segmenter.model_folder(model or segmenter.SHIPPED)
    segmenter.check_sam_settings(folder, segmenter.stored_config(folder), wanted)
    return segmenter.Segmenter.from_pretrained(folder, device=resolve_device(device))


def preset_changes(preset: int | None) -> dict[str, Any]:
    """Return the settings of a preset as dotted keys of a config."""
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise InputError(f"--preset: got {preset}, expected one of 0 to {max(PRESETS)}")
    return PRESETS[preset]
