"""The host that a config names, with its processor or tokenizer."""

from typing import Any

from eligo.errors import InputError
from eligo.pretrained.devices import resolve_device
from eligo.pretrained.identity import GENERATOR, check_tokenizer, refuse_encoder
from eligo.pretrained.load import load_part, load_stock
from eligo.shots.config import ShotsHostConfig
from eligo.shots.hosts.prompt import reads_images
from eligo.shots.hosts.reader import Reader


def load_reader(config: ShotsHostConfig) -> Reader:
    """A model with images if it takes them, else a causal language model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    processor = load_processor(config)
    kind = AutoModelForImageTextToText if reads_images(processor) else AutoModelForCausalLM
    model = load_stock(kind, _name(config), exact=False, dtype=config.dtype)
    refuse_encoder(model.config, f"host.model: {config.model}")
    check_tokenizer(processor, model, f"host.model: {config.model}", least=GENERATOR)
    if not getattr(model, "is_quantized", False):
        model.to(resolve_device(config.device))
    return Reader(model.requires_grad_(False), processor, config.instruction)


def load_processor(config: ShotsHostConfig) -> Any:
    """What writes prompts for the host: a processor, or a tokenizer where it reads text only."""
    from transformers import AutoConfig, AutoProcessor, AutoTokenizer

    name = _name(config)
    about = load_part(AutoConfig, name)
    return load_part(AutoProcessor if hasattr(about, "vision_config") else AutoTokenizer, name)


def _name(config: ShotsHostConfig) -> str:
    if config.model is None:
        raise InputError("host.model: none was given; name a folder, or a model on the hub")
    return config.model
