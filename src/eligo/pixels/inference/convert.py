"""Official files as a model folder: what they are is read off their tensors. Section 2.

A whole model says its size, classes, head and where words enter; how it compares pixels and words
is not in there (give the flags it was trained with) and its words are of the `legacy` form. An
encoder alone gets a fresh head and fresh words as the given config has them, to train from.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import SIZES, PixelsConfig
from eligo.pixels.data.classes import NYU_40
from eligo.pixels.inference.config import SegmenterConfig
from eligo.pixels.inference.segmenter import Segmenter, plain_config
from eligo.pixels.model.official import from_official, unwrapped
from eligo.train.weights import read_pickled

_OURS = ("head.", "text_norm.", "encoder.align.", "encoder.depth_stem.")
_HEAD = "decode_head."


def read_official(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .safetensors file; nothing in it is executed."""
    if path.suffix == ".safetensors":
        try:
            return unwrapped(load_file(path))
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read as weights ({error})") from error
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
