"""Official files as a model folder: what they are is read off their tensors. Section 2.

A whole model says its size, classes, head, where words enter and the multipliers of their logits;
how else it compares pixels and words is not in there (give the flags it was trained with) and its
words are of the `legacy` form. An encoder alone gets a fresh head and fresh words as the given
config has them, to train from.
"""

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

_OURS = ("head.", "text_norm.", "encoder.align.", "encoder.depth_stem.")
_HEAD = "decode_head."
_ALIKE = 1e-3  # numbers in half precision


def read_official(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .safetensors file; nothing in it is executed."""
    if path.suffix == ".safetensors":
        with reading(path, "tensors in a .safetensors file"):
            return unwrapped(load_file(path))
    found = read_pickled(path, holds="tensors", made_by="DFormerv2's training code saves")
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: got {type(found).__name__}, expected tensors by name")
    return unwrapped(found)


def convert_official(
    path: Path,
    config: SegmenterConfig,
    *,
    drop: Iterable[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Segmenter:
    """The model of an official file; `changes` are dotted keys of the config that win."""
    drop = tuple(drop)
    state = read_official(path)
    state = {key: value for key, value in state.items() if not (drop and key.startswith(drop))}
    whole = any(key.startswith(_HEAD) for key in state)
    base = plain_config(config)
    wanted = base.replace({**size_of(path, state), **(_whole(path, state) if whole else {})})
    names = base.classes if len(base.classes) == wanted.num_classes else ()
    # Whole models of NYUDepthv2 (40 classes) were trained on images as OpenCV reads them.
    order = "bgr" if whole and wanted.num_classes == len(NYU_40) else "rgb"
    told = {"classes": names, "inputs.channel_order": order}
    changes = dict(changes or {})
    wanted = wanted.replace(told | changes)
    if not whole:
        return Segmenter(wanted, from_official(state, wanted, fresh=_OURS))
    wanted = wanted.replace(_multipliers(path, state, wanted, changes))
    return Segmenter(wanted, from_official(state, wanted))


def size_of(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The changes that make the encoder the file's, but for what only training has."""
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
    found = PixelsConfig().replace(widths[stem.shape[0]])
    encoder = found.encoder.model_dump(exclude={"drop_path", "depth_stem"})
    changes = {f"encoder.{key}": value for key, value in encoder.items()}
    return changes | {"sam.encoder.groups": found.sam.encoder.groups}


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
            f"{path}: its head is no DFormerv2's (no {_HEAD}{lacking[0]}); --drop {_HEAD} takes "
            "the encoder alone"
        )
    found: dict[str, Any] = {
        key: state[f"{_HEAD}{layer}"].shape[0] for key, layer in layers.items()
    }
    found |= {"classes": (), "encoder.depth_stem": False}
    blocks = [key.split(".") for key in state if "encoder_sam_blocks." in key]
    levels = [key.split(".") for key in state if "dec_sam_layers." in key]
    encoder = {int(parts[parts.index("encoder_sam_blocks") + 1]) for parts in blocks}
    decoder = {int(parts[parts.index("dec_sam_layers") + 1]) + 1 for parts in levels}
    found["sam.encoder.stages"] = tuple(sorted(encoder))
    found["sam.decoder.stages"] = tuple(sorted(decoder))
    keys = [
        value for key, value in state.items() if key.endswith(".k_proj.weight") and "sam" in key
    ]
    if keys:
        found |= {"sam.form": "legacy", "text_dim": keys[0].shape[1]}
    return found


def _multipliers(
    path: Path, state: Mapping[str, Tensor], config: SegmenterConfig, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """`logit_init` of the sides whose multiplier is fixed; where a learned one began is unknown."""
    found: dict[str, Any] = {}
    for side, modes in (("encoder", config.sam.encoder), ("decoder", config.sam.decoder)):
        logs = [value for key, value in state.items() if key.endswith(f".{side}_logit_scale")]
        if modes.learnable_temp or not logs:
            continue
        low, high = (pick(value.double().exp().item() for value in logs) for pick in (min, max))
        if not isclose(low, high, rel_tol=_ALIKE):
            raise InputError(
                f"{path}: the multipliers of the {side}'s logits differ ({low:.6g} to {high:.6g}), "
                f"so they were learned; give --sam-{side}-learnable-temp"
            )
        if isclose(low, modes.logit_init, rel_tol=_ALIKE):
            continue
        key = f"sam.{side}.logit_init"
        if key in asked:
            raise InputError(
                f"{path}: {key}: got {modes.logit_init}, but the file has a fixed multiplier of "
                f"{low:.6g}; leave that flag (or preset) out and give the others"
            )
        found[key] = float(f"{low:.6g}")
    return found
