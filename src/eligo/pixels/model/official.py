"""Weights of the released DFormerv2 and of text-guided models trained with the original SAM code.

`from_official` loads them into our model, `to_official` is its exact inverse. Every name of our
state dict has an official one (q, k and v: three). Tensors that official files store but the config
determines (rotary angles, decay rates, 1/sqrt(d)) are computed and compared. SAM weights in
official files are of the `legacy` form.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import EncoderConfig, PixelsConfig
from eligo.pixels.model.alignment import SemanticAlignment
from eligo.pixels.model.encoder import Encoder, Stage
from eligo.pixels.model.geometry import head_decay, rotary_frequencies
from eligo.pixels.model.model import PixelsModel

_MAX_LISTED = 8  # names of each kind that an error lists

_BLOCK = {
    "position": "cnn_pos_encode.dwconv",
    "norm_attention": "layer_norm1",
    "norm_ffn": "layer_norm2",
    "attention.output": "Attention.out_proj",
    "attention.local": "Attention.lepe.dwconv",
    "prior_weights": "Geo.weight",
    "scale_attention": "gamma_1",
    "scale_ffn": "gamma_2",
    "ffn.expand": "ffn.fc1",
    "ffn.depthwise": "ffn.dwconv.dwconv",
    "ffn.contract": "ffn.fc2",
}
_ALIGN = {
    "attention.query_proj": "q_proj",
    "attention.key_proj": "k_proj",
    "attention.value_proj": "v_proj",
    "attention.out_proj": "out_proj",
    "norm_attention": "norm1",
    "norm_ffn": "norm2",
    "ffn.expand": "ffn.0",
    "ffn.contract": "ffn.3",
    "gate_scale": "gamma_scale",
}
_HEAD = {
    "squeeze.conv": "squeeze.conv",
    "squeeze.norm": "squeeze.bn",
    "hamburger.input": "hamburger.ham_in.conv",
    "hamburger.output.conv": "hamburger.ham_out.conv",
    "hamburger.output.norm": "hamburger.ham_out.bn",
    "refine.conv": "align.conv",
    "refine.norm": "align.bn",
    "classifier": "conv_seg",
}
_SHAPES = {
    "prior_weights": (2, 1, 1, 1),
    "scale_attention": (1, 1, 1, -1),
    "scale_ffn": (1, 1, 1, -1),
}
_NOT_OFFICIAL = ("head.hamburger.bases",)  # the config determines them

Prefixes = Iterable[str]


@overload
def from_official(
    state: Mapping[str, Any], config: PixelsConfig, *, drop: Prefixes = (), fresh: Prefixes = ()
) -> PixelsModel: ...


@overload
def from_official(
    state: Mapping[str, Any], config: EncoderConfig, *, drop: Prefixes = (), fresh: Prefixes = ()
) -> Encoder: ...


def from_official(
    state: Mapping[str, Any],
    config: PixelsConfig | EncoderConfig,
    *,
    drop: Prefixes = (),
    fresh: Prefixes = (),
) -> PixelsModel | Encoder:
    """Load a whole model (or, for an `EncoderConfig`, an encoder), in evaluation mode.

    A missing, unexpected or misshapen tensor is an error. `drop` are prefixes of official tensors
    to ignore (a classifier's `head.`), `fresh` prefixes of ours that keep their initial values
    (`head.`, to train on pretrained encoder weights).
    """
    whole = isinstance(config, PixelsConfig)
    official = _read_tensors(state, whole, tuple(drop))
    model = PixelsModel(config) if whole else Encoder(config)
    unchanged = (*_NOT_OFFICIAL, *fresh)
    targets: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not name.startswith(unchanged):
            targets |= _official_parts(name, value, whole)
    problems = _mismatches(targets, _derived(model), official)
    if problems:
        raise InputError(
            "official weights do not fit the config (is it the right size, with the right stages "
            "of words?):\n  " + "\n  ".join(problems)
        )
    with torch.no_grad():
        for key, target in targets.items():
            if key in official:
                target.copy_(official[key].reshape(target.shape))
    return model.eval()


def to_official(model: PixelsModel | Encoder) -> dict[str, Tensor]:
    """Return a model's weights under their official names and in their official shapes."""
    whole = isinstance(model, PixelsModel)
    state: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name not in _NOT_OFFICIAL:
            parts = _official_parts(name, value, whole)
            state |= {key: part.detach().cpu().clone() for key, part in parts.items()}
    return state | _derived(model)


def unwrapped(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint, without the prefix `module.` of multi-GPU training."""
    for key in ("model", "state_dict"):
        if isinstance(state.get(key), Mapping):
            state = state[key]
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def _read_tensors(
    state: Mapping[str, Any], whole: bool, drop: tuple[str, ...]
) -> dict[str, Tensor]:
    """The tensors by name, with the prefix `backbone.` as a whole model or an encoder has it."""
    tensors = {key: value for key, value in unwrapped(state).items() if not key.startswith(drop)}
    others = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
    if others:
        raise InputError(
            f"official weights: got {others[0]!r}, which is not a tensor; expected a state dict, "
            "maybe under 'model' or 'state_dict'"
        )
    if not whole:
        return {key.removeprefix("backbone."): value for key, value in tensors.items()}
    if not any(key.startswith("backbone.") for key in tensors):
        tensors = {f"backbone.{key}": value for key, value in tensors.items()}
    return tensors


def _official_parts(name: str, value: Tensor, whole: bool) -> dict[str, Tensor]:
    """Views of one of our tensors, by official name (q, k and v: three), in its official shape."""
    theirs = _official_names(name, whole)
    shape = _SHAPES.get(name.rpartition(".")[2])
    parts = value.chunk(len(theirs)) if len(theirs) > 1 else (value,)
    return {
        key: part if shape is None else part.view(shape)
        for key, part in zip(theirs, parts, strict=True)
    }


def _official_names(name: str, whole: bool) -> tuple[str, ...]:
    """The official name, or names, of one of our tensors."""
    if not whole:
        return _encoder_names(name)
    part, _, rest = name.partition(".")
    if part == "encoder":
        return tuple(f"backbone.{theirs}" for theirs in _encoder_names(rest))
    if part == "head":
        return (f"decode_head.{_head_name(rest)}",)
    raise _no_official_name(name)


def _encoder_names(name: str) -> tuple[str, ...]:
    if match := re.fullmatch(r"stem\.(\d)\.(conv|norm)\.(\w+)", name):
        layer = 3 * int(match[1]) + (match[2] == "norm")
        return (f"patch_embed.proj.{layer}.{match[3]}",)
    if match := re.fullmatch(r"stages\.(\d)\.norm_out\.(\w+)", name):
        return (f"extra_norms.{int(match[1]) - 1}.{match[2]}",)
    if match := re.fullmatch(r"stages\.(\d)\.downsample\.(conv|norm)\.(\w+)", name):
        part = "reduction" if match[2] == "conv" else "norm"
        return (f"layers.{match[1]}.downsample.{part}.{match[3]}",)
    if match := re.fullmatch(r"stages\.(\d\.blocks\.\d+)\.(.+)", name):
        prefix, rest = f"layers.{match[1]}", match[2]
        if rest.startswith("attention.qkv."):
            kind = rest.rpartition(".")[2]
            return tuple(f"{prefix}.Attention.{part}_proj.{kind}" for part in "qkv")
        return (f"{prefix}.{_renamed(rest, _BLOCK, name)}",)
    if match := re.fullmatch(r"align\.(\d\.\d+)\.(.+)", name):
        gates = {"gate": "gamma", "attention.scale.log_scale": "encoder_logit_scale"}
        return (f"encoder_sam_blocks.{match[1]}.{_renamed(match[2], _ALIGN | gates, name)}",)
    raise _no_official_name(name)


def _head_name(name: str) -> str:
    if match := re.fullmatch(r"align\.(\d)\.(.+)", name):
        gates = {"gate": "alpha", "attention.scale.log_scale": "decoder_logit_scale"}
        renamed = _renamed(match[2], _ALIGN | gates, name)
        return f"dec_sam_layers.{int(match[1]) - 1}.{renamed}"
    return _renamed(name, _HEAD, name)


def _renamed(name: str, table: Mapping[str, str], full_name: str) -> str:
    """The name with all but its last part (weight, bias, ...) looked up in a table."""
    if name in table:
        return table[name]
    stem, _, kind = name.rpartition(".")
    if stem not in table:
        raise _no_official_name(full_name)
    return f"{table[stem]}.{kind}"


def _no_official_name(name: str) -> InputError:
    return InputError(
        f"{name}: official weights have no such tensor; they support only sam.form: legacy (or no "
        "words), and no encoder.depth_stem"
    )


def _derived(model: PixelsModel | Encoder) -> dict[str, Tensor]:
    """Tensors of official files that the config determines."""
    whole = isinstance(model, PixelsModel)
    encoder = model.encoder if isinstance(model, PixelsModel) else model
    prefix = "backbone." if whole else ""
    tensors: dict[str, Tensor] = {}
    stages = [stage for stage in encoder.stages if isinstance(stage, Stage)]
    for index, stage in enumerate(stages):
        for number in range(len(stage.blocks)):
            geo = f"{prefix}layers.{index}.blocks.{number}.Geo"
            tensors[f"{geo}.angle"] = rotary_frequencies(stage.head_dim)
            tensors[f"{geo}.decay"] = head_decay(stage.num_heads, stage.spread)
    for path, module in encoder.align.named_modules():
        if isinstance(module, SemanticAlignment):
            name = f"{prefix}encoder_sam_blocks.{path}._inv_sqrt_dk"
            tensors[name] = torch.tensor(stages[int(path[0])].head_dim ** -0.5)
    for level in model.head.align if isinstance(model, PixelsModel) else ():
        name = f"decode_head.dec_sam_layers.{int(level) - 1}._inv_sqrt_dk"
        tensors[name] = torch.tensor(stages[int(level)].head_dim ** -0.5)
    return tensors


def _mismatches(
    targets: Mapping[str, Tensor], derived: Mapping[str, Tensor], official: Mapping[str, Tensor]
) -> list[str]:
    missing = [
        f"missing: {key}"
        for key in targets
        if key not in official and not key.endswith("num_batches_tracked")
    ]
    misshapen = [
        f"shape: {key} {tuple(official[key].shape)}, expected {tuple(target.shape)}"
        for key, target in targets.items()
        if key in official and _sides(official[key]) != _sides(target)
    ]
    known = {*targets, *derived}
    unexpected = [f"unexpected: {key}" for key in official if key not in known]
    other = [
        f"value: {key} does not match the config (heads, ranges or widths differ)"
        for key, value in derived.items()
        if key in official and not _same(official[key], value)
    ]
    kinds = (missing, unexpected, misshapen, other)
    return [line for kind in kinds for line in _first(kind)]


def _sides(tensor: Tensor) -> list[int]:
    """The shape without ones: a scalar may be stored as a row of one."""
    return [side for side in tensor.shape if side != 1]


def _same(given: Tensor, value: Tensor) -> bool:
    """Whether values are equal, to the precision of the file."""
    if given.numel() != value.numel():
        return False
    close = max(1e-5, torch.finfo(given.dtype).eps) if given.is_floating_point() else 1e-5
    return torch.allclose(given.float().reshape(value.shape).cpu(), value, rtol=close, atol=0)


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - _MAX_LISTED
    return [*lines[:_MAX_LISTED], f"... and {more} more like it"] if more > 0 else lines
