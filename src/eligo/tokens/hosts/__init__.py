"""Adapters of the model families of `transformers` that can be pruned, one file per family."""

from collections.abc import Callable
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.hosts.base import LAYER_KINDS, Capture, Host
from eligo.tokens.hosts.gemma3 import Gemma3
from eligo.tokens.hosts.glm4v import Glm4V
from eligo.tokens.hosts.idefics3 import Idefics3
from eligo.tokens.hosts.internvl import InternVL
from eligo.tokens.hosts.llava import Llava
from eligo.tokens.hosts.llava_next import LlavaNext
from eligo.tokens.hosts.llava_onevision import LlavaOneVision
from eligo.tokens.hosts.mistral3 import Mistral3
from eligo.tokens.hosts.paligemma import PaliGemma
from eligo.tokens.hosts.pixtral import Pixtral
from eligo.tokens.hosts.qwen2_5_vl import Qwen25VL
from eligo.tokens.hosts.qwen2_vl import Qwen2VL
from eligo.tokens.hosts.qwen3_vl import Qwen3VL
from eligo.tokens.hosts.smolvlm import SmolVLM

__all__ = ["Capture", "Host", "budget_unit", "host_of", "unwrap"]

_FAMILIES: dict[str, type[Host]] = {
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_onevision": LlavaOneVision,
    "mistral3": Mistral3,
    "qwen2_vl": Qwen2VL,
    "qwen2_5_vl": Qwen25VL,
    "qwen3_vl": Qwen3VL,
    "glm4v": Glm4V,
    "idefics3": Idefics3,
    "smolvlm": SmolVLM,
    "internvl": InternVL,
    "paligemma": PaliGemma,
    "gemma3": Gemma3,
}
_BY_CROSS_ATTENTION = "its language model reads images by cross-attention"
_AS_WORDS = "its images are words of the vocabulary"
_CANNOT = {
    "blip": _BY_CROSS_ATTENTION,
    "chameleon": _AS_WORDS,
    "emu3": _AS_WORDS,
    "fuyu": "it has no vision tower",
    "idefics": _BY_CROSS_ATTENTION,
    "mllama": _BY_CROSS_ATTENTION,
}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the `transformers` model inside PEFT, data-parallel and similar wrappers."""
    for _ in range(8):
        if hasattr(model, "get_base_model"):  # PEFT
            model = model.get_base_model()  # pyright: ignore[reportCallIssue]
        elif isinstance(inner := getattr(model, "module", None), nn.Module):
            model = inner
        else:
            break
    return model


def host_of(model: nn.Module, make: Callable[[nn.Module], Host] | None = None) -> Host:
    """Return the adapter of a model; `make` builds one for a family that eligo does not support."""
    refuse_compiled(model)
    bare = unwrap(model)
    host = (make or _family(bare))(bare)
    host.check()
    return host


def budget_unit(model_type: str) -> str:
    """Return what a budget counts tokens of, such as "image" or "tile"."""
    return _FAMILIES.get(model_type, Host).budget_unit


def refusal(config: Any) -> str | None:
    """Return why models of this config can have no adapter; None: they have one, or could."""
    kind = str(getattr(config, "model_type", None))
    if kind in _CANNOT:
        return _CANNOT[kind]
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    text = config.get_text_config() if hasattr(config, "get_text_config") else None
    kinds = set(getattr(text, "layer_types", None) or []) - set(LAYER_KINDS)
    return f"its language model has layers of kind {', '.join(sorted(kinds))}" if kinds else None


def _family(model: nn.Module) -> type[Host]:
    config: Any = getattr(model, "config", None)
    kind = str(getattr(config, "model_type", None))
    if (why := refusal(config)) is not None:
        raise InputError(f"got a {type(model).__name__}, which cannot be pruned: {why}")
    if kind not in _FAMILIES:
        raise InputError(
            f"got a {type(model).__name__} (model_type {kind!r}); expected one of "
            f"{', '.join(sorted(_FAMILIES))}. To add a family, subclass eligo.tokens.hosts.Host "
            "(see docs/adding_a_host.md) and pass it as host="
        )
    if kind == "llava" and config.vision_config.model_type == "pixtral":
        return Pixtral
    return _FAMILIES[kind]


def refuse_compiled(model: nn.Module) -> None:
    """Raise if a model, or a part of it, was compiled: hooks do not run in a compiled graph."""
    modules = [model]  # not `modules()`, which takes a millisecond
    while modules:
        module = modules.pop()
        if "_orig_mod" not in module._modules and module._compiled_call_impl is None:
            modules.extend(part for part in module._modules.values() if part is not None)
            continue
        raise InputError(
            "got a model that torch.compile compiled; expected the plain one: lengths change from "
            "layer to layer, so its graphs would not fit"
        )
