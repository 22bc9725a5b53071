"""Pointer selectors as folders: `config.yaml` and `pointer.safetensors`, read strictly.

The same two files are in a checkpoint of `eligo shots train` (whose config is the whole run's), so
a run, a checkpoint, a saved selector and a model of its own are all read alike.

Weights of the guides' programs (`best_checkpoint.pth`) are read as tensors only, never unpickled.
Their guides name the three projections as we do; V2's attention is torch's `MultiheadAttention`
and its norm a `LayerNorm`, under whatever name.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from eligo.config import save_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import find_model, misfits, refuse_misfits
from eligo.shots.model.build import build_model
from eligo.shots.model.config import AnyPointerConfig
from eligo.shots.model.pointer import PointerSelector
from eligo.train.weights import build_module, load_weights, read_pickled, save_weights

FILE, CONFIG, SELECTOR = "pointer", "config.yaml", "selector.json"
_ADAPTER: TypeAdapter[AnyPointerConfig] = TypeAdapter(AnyPointerConfig)
_INNER = ("model_state_dict", "state_dict", "model")


def save_pointer(
    model: PointerSelector, folder: str | Path, dtype: torch.dtype | None = None
) -> None:
    """Write both files; `dtype` torch.float16 halves them."""
    folder = Path(folder)
    save_weights(folder, {FILE: model}, dtype)
    save_config(model.config, folder / CONFIG)


def load_pointer(name: str | Path) -> PointerSelector:
    """Of a folder, of what comes with eligo, or of the hub; float32, evaluation mode."""
    found = find_model(name, f"{FILE}.safetensors")
    places = (found, found / "best", found / "selector")
    folder = next((place for place in places if (place / f"{FILE}.safetensors").is_file()), None)
    if folder is None:
        raise InputError(
            f"{found}: no {FILE}.safetensors in it; expected a model, a selector, a checkpoint or "
            "a run of `eligo shots train`"
        )
    with reading(folder, "the config of a pointer selector"):
        config = _config(folder)
        model = build_module(folder, FILE, lambda: build_model(config))
    load_weights(folder, {FILE: model})
    return model.eval()


def _config(folder: Path) -> AnyPointerConfig:
    if (folder / SELECTOR).is_file():
        tree: Any = read_object(folder / SELECTOR, "PointerSelector.save_pretrained")
    elif (folder / CONFIG).is_file():
        tree = read_yaml(folder / CONFIG)[0]
    else:
        raise InputError(f"{folder}: has weights, but no {CONFIG} that says of what")
    return _ADAPTER.validate_python(tree.get("model", tree))


def import_pointer(path: Path, config: AnyPointerConfig) -> PointerSelector:
    """A model from a state dict of the guides' programs; widths are those of its weights."""
    state = _ours(_read(path))
    if "input_proj.weight" not in state:
        raise InputError(
            f"{path}: has {', '.join(sorted(state)[:8])}; expected input_proj.weight, query_proj."
            "weight and cand_proj.weight"
        )
    hidden, width = state["input_proj.weight"].shape
    model = build_model(config.replace({"d_model": width, "hidden_dim": hidden}))
    own = model.state_dict()
    state |= {key: own[key] for key in own if key.endswith("log_scale")}  # a setting with them
    shapes = [
        f"{key}: {tuple(state[key].shape)} stored, {tuple(own[key].shape)} expected"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    refuse_misfits(path, misfits(own.keys() - state.keys(), state.keys() - own.keys(), shapes))
    model.load_state_dict(state)
    return model.eval()


def _read(path: Path) -> dict[str, Tensor]:
    made_by = "torch.save made of a state_dict()"
    found = read_pickled(path, holds="tensors", made_by=made_by)
    for name in _INNER:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
            break
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path}: expected weights by name, or those under {', '.join(_INNER)}")
    return {key.removeprefix("module."): value for key, value in found.items()}


def _ours(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """In our names; torch's attention keeps its three projections in one tensor."""
    made: dict[str, Tensor] = {}
    for key, value in state.items():
        owner, _, last = key.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias"):
            kind = last.removeprefix("in_proj_")
            for name, part in zip(("query", "key", "value"), value.chunk(3), strict=True):
                made[f"look.attention.{name}_proj.{kind}"] = part.contiguous()
        elif key.startswith(("input_proj.", "query_proj.", "cand_proj.")):
            made[key] = value
        elif owner.endswith("out_proj"):
            made[f"look.attention.out_proj.{last}"] = value
        elif value.ndim == 1 and last in ("weight", "bias"):
            made[f"look.norm.{last}"] = value
        elif value.numel() > 1:  # a temperature is a setting here
            made[key] = value
    return made
