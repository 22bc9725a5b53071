"""Official files as a model folder: what they are is read off their tensors. Section 2.

A whole model says its size, classes, head and where words enter; how it compares pixels and words
is not in there (give the flags it was trained with) and its words are of the `legacy` form. An
encoder alone gets a fresh head and fresh words as the given config has them, to train from.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import SIZES, PixelsConfig
from eligo.pixels.data.classes import NYU_40
from eligo.pixels.inference.config import SegmenterConfig
from eligo.pixels.inference.segmenter import Segmenter, plain_config
from eligo.pixels.model.official import from_official

_OURS = ("head.", "text_norm.", "encoder.align.", "encoder.depth_stem.")
_HEAD = "decode_head."


def read_official(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .safetensors file; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError, SafetensorError, EOFError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: cannot be read as weights ({why})") from error
    for key in ("model", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: got {type(found).__name__}, expected tensors by name")
    return dict(found)


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
    wanted = base.replace({**size_of(path, state), **(_whole(state) if whole else {})})
    names = base.classes if len(base.classes) == wanted.num_classes else ()
    # Whole models of NYUDepthv2 (40 classes) were trained on images as OpenCV reads them.
    order = "bgr" if whole and wanted.num_classes == len(NYU_40) else "rgb"
    told = {"classes": names, "inputs.channel_order": order}
    wanted = wanted.replace(told | dict(changes or {}))
    if whole:
        return Segmenter(wanted, from_official(state, wanted), None)
    return Segmenter(wanted, from_official(state, wanted, fresh=_OURS), None)


def size_of(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The changes that make the encoder as wide as the file's."""
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
    # The heads of `small` are ours alone; a file says its own.
    changes = widths[stem.shape[0]]
    return {key: value for key, value in changes.items() if not key.startswith("head.")}


def _whole(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Classes, head and words of a whole model."""
    squeeze = state[f"{_HEAD}squeeze.conv.weight"]
    found: dict[str, Any] = {
        "num_classes": state[f"{_HEAD}conv_seg.weight"].shape[0],
        "classes": (),
        "head.channels": squeeze.shape[0],
        "head.ham_channels": state[f"{_HEAD}hamburger.ham_in.conv.weight"].shape[0],
        "encoder.depth_stem": False,
    }
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
