"""Which host a model is: one adapter per family of `transformers`."""

from collections.abc import Callable
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.hosts.families import InternVL, Llava, PaliGemma, Qwen25VL, SmolVLM
from eligo.tokens.hosts.host import Capture, Host, refuse_video

__all__ = ["Capture", "Host", "host_of", "refuse_video", "unwrap"]

_FAMILIES: dict[str, type[Host]] = {
    "llava": Llava,
    "qwen2_5_vl": Qwen25VL,
    "smolvlm": SmolVLM,
    "internvl": InternVL,
    "paligemma": PaliGemma,
}


def unwrap(model: nn.Module) -> nn.Module:
    """The `transformers` model inside PEFT, data-parallel and similar wrappers."""
    for _ in range(8):
        if hasattr(model, "get_base_model"):  # PEFT
            model = model.get_base_model()  # pyright: ignore[reportCallIssue]
        elif isinstance(inner := getattr(model, "module", None), nn.Module):
            model = inner
        else:
            break
    return model


def host_of(model: nn.Module, make: Callable[[nn.Module], Host] | None = None) -> Host:
    """The adapter of a model, or a clear error; `make` is an adapter of one's own."""
    refuse_compiled(model)
    bare = unwrap(model)
    if make is None:
        make = _family(bare)
    host = make(bare)
    host.check()
    return host


def _family(model: nn.Module) -> type[Host]:
    config: Any = getattr(model, "config", None)
    kind = str(getattr(config, "model_type", None))
    if kind.startswith("qwen3_vl"):
        raise InputError(
            "Qwen3-VL: its DeepStack adds vision features in the early layers of the language "
            "model, column by column; expected a host without it, such as Qwen2.5-VL"
        )
    if kind not in _FAMILIES:
        raise InputError(
            f"got a {type(model).__name__} (model_type {kind!r}); expected one of "
            f"{', '.join(sorted(_FAMILIES))}. To add a family, subclass eligo.tokens.hosts.Host "
            "(where its parts live, its grids, its positions) and pass it as host="
        )
    return _FAMILIES[kind]


def refuse_compiled(model: nn.Module) -> None:
    """Raise if a model, or a part of it, was compiled: hooks do not run in a compiled graph."""
    modules = [model]  # walked by hand: at every entrance, and `modules()` would take a millisecond
    while modules:
        module = modules.pop()
        if "_orig_mod" not in module._modules and module._compiled_call_impl is None:
            modules.extend(part for part in module._modules.values() if part is not None)
            continue
        raise InputError(
            "got a model that torch.compile compiled; expected the plain one: lengths change from "
            "layer to layer, so its graphs would not fit"
        )
