"""Hosts: pretrained vision-language models (or language models) with their processors."""

import logging
from typing import Any

import torch

from eligo.errors import InputError
from eligo.pretrained.identity import GENERATOR, check_tokenizer, refuse_encoder
from eligo.pretrained.load import find_host, load_part, load_stock

_log = logging.getLogger("eligo")


def load_host(name: str, *, dtype: str = "auto", needs_images: bool = True) -> tuple[Any, Any]:
    """Load a frozen host in eval mode and its processor, from a folder, shipped name or the hub.

    Without `needs_images` a causal language model with its tokenizer is accepted as well.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    where = f"host.model: {name}"
    # The processor first: it is fast to load, and the model may take minutes.
    processor = load_processor(name, needs_images=needs_images)
    takes_images = getattr(processor, "image_processor", None) is not None
    if needs_images and not takes_images:
        what = "text" if hasattr(processor, "convert_tokens_to_ids") else "images"
        raise InputError(
            f"{where} reads {what} only ({type(processor).__name__}), expected a "
            "vision-language model of transformers with its processor"
        )
    kind = AutoModelForImageTextToText if takes_images else AutoModelForCausalLM
    model = load_stock(kind, find_host(name), exact=False, dtype=dtype)
    refuse_encoder(model.config, where)
    check_tokenizer(processor, model, where, least=GENERATOR)
    return model.eval().requires_grad_(False), processor


def load_processor(name: str, *, needs_images: bool = False) -> Any:
    """Load the processor of a host, or the tokenizer of a host that reads text only."""
    from transformers import AutoProcessor, AutoTokenizer

    if needs_images or hasattr(load_config(name), "vision_config"):
        return load_part(AutoProcessor, find_host(name, weights=False))
    return load_part(AutoTokenizer, find_host(name, weights=False))


def load_config(name: str) -> Any:
    """Load the config of a host; a model that does not continue text is refused."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    config, where = load_part(AutoConfig, find_host(name, weights=False)), f"host.model: {name}"
    refuse_encoder(config, where)
    kinds = {
        **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    if config.model_type not in kinds:
        raise InputError(
            f"{where}: is a model of type {config.model_type}, which does not continue a text; "
            "expected a causal language model or a vision-language model"
        )
    return config


def move_host(model: Any, device: str | torch.device, dtype: torch.dtype | None = None) -> None:
    """Move a host to a device and a dtype; quantised weights stay as their loader placed them."""
    if getattr(model, "is_quantized", False):
        _log.info("device and dtype of the host have no effect: it is quantised")
    else:
        model.to(device=device, dtype=dtype)
