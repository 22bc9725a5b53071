"""The frozen host that a config names, with its processor."""

import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.pretrained.identity import GENERATOR, check_tokenizer
from eligo.pretrained.load import load_part, load_stock
from eligo.tokens.config import HostConfig

logger = logging.getLogger("eligo.tokens")


def load_host(config: HostConfig, *, device: str | torch.device = "cpu") -> tuple[nn.Module, Any]:
    """Model (eval mode, no gradients) and processor: shipped, random, or from a folder or hub."""
    from eligo.scenes.vlm.model import VlmConfig, build_processor, build_vlm, load_vlm

    if config.random is not None:
        sizes = VlmConfig(**config.random.model_dump())
        model, processor = build_vlm(sizes), build_processor(sizes)
    elif config.model is None:
        model, processor = load_vlm()
    else:
        model, processor = _pretrained(config.model)
        check_tokenizer(processor, model, f"host.model: {config.model}", least=GENERATOR)
    if getattr(processor, "tokenizer", None) is not None:
        processor.tokenizer.padding_side = "left"
    host = cast(nn.Module, model)  # the hub's classes type `to` in a way of their own
    if getattr(model, "is_quantized", False):
        # Quantised weights stay as, and mostly where, their own loader put them.
        logger.info("host.dtype and device have no effect: %s is quantised", config.model)
    else:
        host.to(device=device, dtype=getattr(torch, config.dtype))
    return host.eval().requires_grad_(False), processor


def floats_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs with pixels in the dtype in which a model computes; quantised weights have none."""
    dtype = dtype_of(model)
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def dtype_of(model: nn.Module) -> torch.dtype:
    """Of the first weights that are floats."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floats, torch.get_default_dtype())


def _pretrained(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    # The processor first: it says at once what is missing, and the model may take minutes.
    processor = load_part(AutoProcessor, name)
    if getattr(processor, "image_processor", None) is None:
        raise InputError(
            f"host.model: {name} reads text only ({type(processor).__name__}), expected a "
            "vision-language model of transformers with its processor"
        )
    return load_stock(AutoModelForImageTextToText, name, exact=False, dtype="auto"), processor
