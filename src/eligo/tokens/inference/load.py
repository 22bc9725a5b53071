"""Load the frozen host that a config names, with its processor."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from eligo.pretrained import hosts
from eligo.tokens.config import HostConfig


def load_host(config: HostConfig, *, device: str | torch.device = "cpu") -> tuple[nn.Module, Any]:
    """Return model (eval mode, no gradients) and processor: shipped, random, folder or hub."""
    from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, load_vlm

    if config.random is not None:
        sizes = VlmConfig(**config.random.model_dump())
        model, processor = build_vlm(sizes), build_processor(sizes)
    elif config.model is None:
        model, processor = load_vlm()
    else:
        model, processor = hosts.load_host(config.model)
    if getattr(processor, "tokenizer", None) is not None:
        processor.tokenizer.padding_side = "left"
    hosts.move_host(model, device, getattr(torch, config.dtype))
    return model.eval().requires_grad_(False), processor


def floats_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with floats in the dtype of the model."""
    dtype = dtype_of(model)
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the first floating-point weights; quantised weights have none."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floats, torch.get_default_dtype())
