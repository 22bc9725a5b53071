"""Build, save and load pointer selectors: `config.yaml` and `pointer.safetensors`, read strictly.

A checkpoint of `eligo shots train` has the same two files (its config is the whole run's), so runs,
checkpoints, selectors and models are loaded in the same way.

Weights of the published designs' programs (`best_checkpoint.pth`) are read as tensors only, never
unpickled. They name the three projections as we do; V2's attention is torch's `MultiheadAttention`
and its norm a `LayerNorm`, under any name. Our projections have no biases, theirs may: a model has
them if its weights do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from eligo.config import save_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import find_model, misfits, not_finite, refuse_misfits
from eligo.pretrained.untrusted import read_header
from eligo.shots.config import AnyPointerConfig
from eligo.shots.model.bi_encoder import PointerSelectorV1, PointerSelectorV2, PointerSelectorV3
from eligo.shots.model.decoder import PointerSelectorV0
from eligo.shots.model.pointer import PointerSelector
from eligo.train.weights import build_module, load_weights, read_pickled, save_weights

FILE, CONFIG, SELECTOR = "pointer", "config.yaml", "selector.json"
_ADAPTER: TypeAdapter[AnyPointerConfig] = TypeAdapter(AnyPointerConfig)
_INNER = ("model_state_dict", "state_dict", "model")
_PROJECTIONS = ("input_proj", "query_proj", "cand_proj")
_BIASES = {f"{name}.bias" for name in _PROJECTIONS}

# Names of the published designs' factories.
build_model_v0 = PointerSelectorV0
build_model_v1 = PointerSelectorV1
build_model_v2 = PointerSelectorV2
build_model_v3 = PointerSelectorV3
_VERSIONS: dict[str, Any] = {
    "v0": PointerSelectorV0,
    "v1": PointerSelectorV1,
    "v2": PointerSelectorV2,
    "v3": PointerSelectorV3,
}


def build_model(config: AnyPointerConfig) -> PointerSelector:
    """Return a model of the config's version with fresh weights."""
    return _VERSIONS[config.version](config)


def save_pointer(
    model: PointerSelector, folder: str | Path, dtype: torch.dtype | None = None
) -> None:
    """Write config and weights; `dtype` torch.float16 halves the weights."""
    folder = Path(folder)
    save_weights(folder, {FILE: model}, dtype)
    save_config(model.config, folder / CONFIG)


def load_pointer(name: str | Path) -> PointerSelector:
    """Load from a folder, the shipped models or the hub; float32, in eval mode."""
    root = find_model(name, f"{FILE}.safetensors")
    folder = find_pointer(root)
    if folder is None:
        raise InputError(
            f"{root}: no {FILE}.safetensors in it; expected a model, a selector, a checkpoint or "
            "a run of `eligo shots train`"
        )
    with reading(folder, "the config of a pointer selector"):
        model = build_saved(folder, FILE, _read_config(folder))
    load_weights(folder, {FILE: model})
    return model.eval()


def find_pointer(root: Path) -> Path | None:
    """Return the folder of the weights in that of a model, a selector, a checkpoint or a run."""
    folders = (root, root / "best", root / "selector")
    return next((path for path in folders if (path / f"{FILE}.safetensors").is_file()), None)


def build_saved(folder: Path, name: str, config: Any) -> PointerSelector:
    """Return the model of a saved config, to load `name` of the folder into."""
    if isinstance(config, Mapping) and "residual" not in config:  # saved before 0.2.0
        config = {**config, "residual": False}
    checked = _ADAPTER.validate_python(config)
    model = build_module(folder, name, lambda: build_model(checked))
    if read_header(folder / f"{name}.safetensors").keys() & _BIASES:
        _add_biases(model)
    return model


def _add_biases(model: PointerSelector) -> None:
    """Give the projections biases of zero, to load those of other programs into."""
    for key in sorted(_BIASES):
        linear = model.get_submodule(key.removesuffix(".bias"))
        linear.bias = nn.Parameter(torch.zeros(model.config.hidden_dim))


def _read_config(folder: Path) -> Any:
    if (folder / SELECTOR).is_file():
        tree: Any = read_object(folder / SELECTOR, "PointerSelector.save_pretrained")
    elif (folder / CONFIG).is_file():
        tree = read_yaml(folder / CONFIG)[0]
    else:
        raise InputError(f"{folder}: has weights, but no {CONFIG} that describes the model")
    return tree.get("model", tree)


def import_pointer(path: Path, config: AnyPointerConfig) -> PointerSelector:
    """Load a state dict of the published designs' programs; widths come from its weights."""
    state = _renamed(_read_state(path))
    projection = state.get("input_proj.weight")
    if projection is None or projection.ndim != 2:
        raise InputError(
            f"{path}: has {', '.join(sorted(state)[:8])}; expected input_proj.weight (hidden, "
            "width), query_proj.weight and cand_proj.weight"
        )
    hidden, width = projection.shape
    sizes = {"d_model": width, "hidden_dim": hidden, "residual": False}
    model = build_model(config.replace(sizes))
    if state.keys() & _BIASES:
        _add_biases(model)
    own = model.state_dict()
    # The temperature is a setting there; a projection without a bias has one of zero.
    state |= {k: own[k] for k in own if k.endswith("log_scale") or k in _BIASES - state.keys()}
    shapes = [
        f"{key}: {tuple(state[key].shape)} stored, {tuple(own[key].shape)} expected"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    broken = not_finite(state.items())
    refuse_misfits(path, misfits(sorted(missing), sorted(unexpected), shapes, broken=broken))
    model.load_state_dict(state)
    return model.eval()


def _read_state(path: Path) -> dict[str, Tensor]:
    state = read_pickled(path, holds="tensors", made_by="torch.save made of a state_dict()")
    for name in _INNER:
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
            break
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise InputError(f"{path}: expected weights by name, or those under {', '.join(_INNER)}")
    return {key.removeprefix("module."): value for key, value in state.items()}


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename to our keys; torch's attention keeps its three projections in one tensor."""
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        owner, _, last = key.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias"):
            kind = last.removeprefix("in_proj_")
            for name, part in zip(("query", "key", "value"), value.chunk(3), strict=True):
                renamed[f"look.attention.{name}_proj.{kind}"] = part.contiguous()
        elif owner in _PROJECTIONS:
            renamed[key] = value
        elif owner.endswith("out_proj"):
            renamed[f"look.attention.out_proj.{last}"] = value
        elif value.ndim == 1 and last in ("weight", "bias"):
            renamed[f"look.norm.{last}"] = value
        elif value.numel() > 1:  # a temperature is a setting here
            renamed[key] = value
    return renamed
