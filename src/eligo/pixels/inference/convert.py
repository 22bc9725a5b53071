"""Convert official weights to a model folder; the architecture is inferred from the tensors.

The tensors of a whole model determine its size, classes, head, where words enter and the
multipliers of their logits, but not how else pixels and words are compared (give the flags of its
training); its SAM is of the `legacy` form. An encoder alone gets a new head and SAM as the config
describes them, to train from.
"""

import re
from collections.abc import Iterable, Mapping
from math import isclose
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError
from eligo.io.reading import reading
from eligo.pixels.config import SIZES, PixelsConfig, SegmenterConfig
from eligo.pixels.data.classes import NYU_40
from eligo.pixels.inference.segmenter import Segmenter, plain_config
from eligo.pixels.model.official import from_official, unwrapped
from eligo.train.weights import read_pickled

_NEW_PARTS = ("head.", "text_norm.", "encoder.align.", "encoder.depth_stem.")
_HEAD = "decode_head."
_TOLERANCE = 1e-3  # numbers in half precision


def read_official(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .pth or .safetensors file, without executing code in it."""
    if path.suffix == ".safetensors":
        with reading(path, "tensors in a .safetensors file"):
            return unwrapped(load_file(path))
    loaded = read_pickled(path, holds="tensors", made_by="DFormerv2's training code saves")
    if not isinstance(loaded, Mapping):
        raise InputError(f"{path}: got {type(loaded).__name__}, expected tensors by name")
    return unwrapped(loaded)


def convert_official(
    path: Path,
    config: SegmenterConfig,
    *,
    drop: Iterable[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Segmenter:
    """Load an official file; `changes` override the config, by dotted key."""
    drop = tuple(drop)
    state = read_official(path)
    state = {key: value for key, value in state.items() if not (drop and key.startswith(drop))}
    whole = any(key.startswith(_HEAD) for key in state)
    base = plain_config(config)
    wanted = base.replace({**size_of(path, state), **(_whole(path, state) if whole else {})})
    names = base.classes if len(base.classes) == wanted.num_classes else ()
    # Whole models of NYUDepthv2 (40 classes) were trained on images read by OpenCV.
    order = "bgr" if whole and wanted.num_classes == len(NYU_40) else "rgb"
    changes = dict(changes or {})
    wanted = wanted.replace({"classes": names, "inputs.channel_order": order} | changes)
    if not whole:
        return Segmenter(wanted, from_official(state, wanted, fresh=_NEW_PARTS))
    wanted = wanted.replace(_multipliers(path, state, wanted, changes))
    return Segmenter(wanted, from_official(state, wanted))


def size_of(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the changes of a config that give it the encoder of a file."""
    stem = next((v for k, v in state.items() if k.endswith("patch_embed.proj.9.weight")), None)
    if stem is None:
        raise InputError(f"{path}: holds no DFormerv2 encoder (no patch_embed.proj.9.weight)")
    widths = {
        PixelsConfig().replace(changes).encoder.dims[0]: changes for changes in SIZES.values()
    }
    if stem.shape[0] not in widths:
        raise InputError(
            f"{path}: got an encoder {stem.shape[0]} wide at its first stage, expected one of "
            f"{', '.join(f'{width} ({size})' for width, size in zip(widths, SIZES, strict=True))}"
        )
    base = PixelsConfig().replace(widths[stem.shape[0]])
    encoder = base.encoder.model_dump(exclude={"drop_path", "depth_stem"})
    changes = {f"encoder.{key}": value for key, value in encoder.items()}
    return changes | {"sam.encoder.groups": base.sam.encoder.groups}


def _whole(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Classes, head and words of a whole model."""
    layers = {
        "num_classes": "conv_seg.weight",
        "head.channels": "squeeze.conv.weight",
        "head.ham_channels": "hamburger.ham_in.conv.weight",
    }
    lacking = [layer for layer in layers.values() if f"{_HEAD}{layer}" not in state]
    if lacking:
        raise InputError(
            f"{path}: its head is not that of DFormerv2 (no {_HEAD}{lacking[0]}); --drop {_HEAD} "
            "takes the encoder alone"
        )
    changes: dict[str, Any] = {
        key: state[f"{_HEAD}{layer}"].shape[0] for key, layer in layers.items()
    }
    changes |= {"classes": (), "encoder.depth_stem": False}
    changes["sam.encoder.stages"] = _numbers(state, "encoder_sam_blocks")
    changes["sam.decoder.stages"] = tuple(n + 1 for n in _numbers(state, "dec_sam_layers"))
    keys = [v for key, v in state.items() if key.endswith(".k_proj.weight") and "sam" in key]
    if keys:
        changes |= {"sam.form": "legacy", "text_dim": keys[0].shape[1]}
    return changes


def _numbers(state: Mapping[str, Tensor], part: str) -> tuple[int, ...]:
    """The numbers that follow this part of a name."""
    matches = (re.search(rf"{part}\.(\d+)\.", key) for key in state)
    return tuple(sorted({int(match[1]) for match in matches if match}))


def _multipliers(
    path: Path, state: Mapping[str, Tensor], config: SegmenterConfig, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """`logit_init` of the sides with a fixed multiplier; the start of a learned one is unknown."""
    inits: dict[str, Any] = {}
    for side, settings in (("encoder", config.sam.encoder), ("decoder", config.sam.decoder)):
        logs = [value for key, value in state.items() if key.endswith(f".{side}_logit_scale")]
        if settings.learnable_temp or not logs:
            continue
        low, high = (pick(value.double().exp().item() for value in logs) for pick in (min, max))
        if not isclose(low, high, rel_tol=_TOLERANCE):
            raise InputError(
                f"{path}: the multipliers of the {side}'s logits differ ({low:.6g} to {high:.6g}), "
                f"so they were learned; give --sam-{side}-learnable-temp"
            )
        if isclose(low, settings.logit_init, rel_tol=_TOLERANCE):
            continue
        key = f"sam.{side}.logit_init"
        if key in changes:
            raise InputError(
                f"{path}: {key}: got {settings.logit_init}, but the file has a fixed multiplier of "
                f"{low:.6g}; leave that flag (or preset) out and give the others"
            )
        inits[key] = float(f"{low:.6g}")
    return inits
