"""What several `pixels` commands understand alike: the flags of the attention to words, the model.

The flags are those of the SAM attention guide; `--sam-decoder-use-cosine` is
`--sam.decoder.use_cosine`, and so on. Given with a trained model they must agree with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from eligo.cli.flags import Positive
from eligo.errors import InputError
from eligo.pixels.config import PRESETS

if TYPE_CHECKING:
    from eligo.pixels.inference.segmenter import Segmenter

_SIDES = ("decoder", "encoder")
_SWITCHES = ("use_cosine", "learnable_temp")


def _about(help: str, hint: str = "") -> Any:
    return tyro.conf.arg(help=help, help_behavior_hint=hint)


Switch = tyro.conf.FlagCreatePairsOff[bool]  # each switch has its opposite beside it
_DEFAULT = "(default)"
_START = "start of the multiplier of the logits, 1 / temperature."


@dataclass(frozen=True)
class SamFlags:
    """Flags of the attention to words, on either side."""

    sam_decoder_use_cosine: Annotated[
        Switch, _about("Words in the head: compare directions.", _DEFAULT)
    ] = False
    no_sam_decoder_use_cosine: Annotated[
        Switch, _about("Words in the head: compare dot products.")
    ] = False
    sam_decoder_learnable_temp: Annotated[
        Switch, _about("Words in the head: learn the temperature.", _DEFAULT)
    ] = False
    no_sam_decoder_learnable_temp: Annotated[
        Switch, _about("Words in the head: leave the temperature as it is.")
    ] = False
    sam_decoder_logit_init: Annotated[
        Positive | None,
        tyro.conf.DisallowNone,
        _about(f"Words in the head: {_START}", "(default: 14.285714)"),
    ] = None
    sam_encoder_use_cosine: Annotated[
        Switch, _about("Words in the encoder: compare directions.")
    ] = False
    no_sam_encoder_use_cosine: Annotated[
        Switch, _about("Words in the encoder: compare dot products.", _DEFAULT)
    ] = False
    sam_encoder_learnable_temp: Annotated[
        Switch, _about("Words in the encoder: learn the temperature.")
    ] = False
    no_sam_encoder_learnable_temp: Annotated[
        Switch, _about("Words in the encoder: leave the temperature as it is.", _DEFAULT)
    ] = False
    sam_encoder_logit_init: Annotated[
        Positive | None,
        tyro.conf.DisallowNone,
        _about(f"Words in the encoder: {_START}", "(default: 1.0)"),
    ] = None


Sam = Annotated[SamFlags, tyro.conf.arg(name="")]
SamCheck = Annotated[SamFlags, tyro.conf.arg(name="model must have"), tyro.conf.OmitArgPrefixes]
"""The same flags where a model has its modes already, in a box of help that says so."""
NO_FLAGS = SamFlags()


def sam_changes(flags: SamFlags) -> dict[str, Any]:
    """What the flags say, as dotted keys of a config."""
    said = vars(flags).items()
    given = {name: value for name, value in said if value is not None and value is not False}
    found: dict[str, Any] = {}
    for side in _SIDES:
        for name in _SWITCHES:
            yes, no = (f"{prefix}sam_{side}_{name}" in given for prefix in ("", "no_"))
            if yes and no:
                flag = f"sam-{side}-{name.replace('_', '-')}"
                raise InputError(f"got both --{flag} and --no-{flag}, expected one of them")
            if yes or no:
                found[f"sam.{side}.{name}"] = yes
        if (value := given.get(f"sam_{side}_logit_init")) is not None:
            found[f"sam.{side}.logit_init"] = value
    return found


def open_segmenter(
    model: Path | None, device: str, sam: SamFlags, preset: int | None = None
) -> "Segmenter":
    """The model of a folder; flags that contradict it are an error."""
    asked = preset_changes(preset) | sam_changes(sam)
    from eligo.pixels.inference.modes import refuse_other_modes
    from eligo.pixels.inference.segmenter import Segmenter, model_folder, stored_config
    from eligo.pretrained.devices import resolve_device

    folder = model_folder(model)
    refuse_other_modes(folder, stored_config(folder), asked)
    return Segmenter.from_pretrained(folder, device=resolve_device(device))


def preset_changes(preset: int | None) -> dict[str, Any]:
    """What a preset says, as dotted keys of a config."""
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise InputError(f"--preset: got {preset}, expected one of 0 to {max(PRESETS)}")
    return PRESETS[preset]
