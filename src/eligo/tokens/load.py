"""The frozen host that a config names, with its processor."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from eligo.errors import InputError
from eligo.tokens.training.inputs_config import HostConfig


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
    if getattr(processor, "tokenizer", None) is not None:
        processor.tokenizer.padding_side = "left"
    host = cast(nn.Module, model)  # the hub's classes type `to` in a way of their own
    host.to(device=device, dtype=getattr(torch, config.dtype))
    return host.eval().requires_grad_(False), processor


def _pretrained(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    local = Path(name).is_dir()
    try:
        model = AutoModelForImageTextToText.from_pretrained(
            name, dtype="auto", local_files_only=local
        )
        return model, AutoProcessor.from_pretrained(name, local_files_only=local)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"host.model: got {name!r}, expected a folder with a vision-language model of "
            f"transformers and its processor, or the name of one on the hub; {reason}"
        ) from None
