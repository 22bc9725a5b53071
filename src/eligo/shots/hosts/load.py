"""Load the host that a config names, with its processor or tokenizer."""

from typing import Any

from eligo.errors import InputError
from eligo.pretrained import hosts
from eligo.pretrained.chat import context_of
from eligo.pretrained.devices import resolve_device
from eligo.shots.config import ShotsHostConfig
from eligo.shots.hosts.reader import Reader


def load_reader(config: ShotsHostConfig) -> Reader:
    """Load a vision-language model, or a causal language model."""
    device = resolve_device(config.device)
    model, processor = hosts.load_host(_name(config), dtype=config.dtype, needs_images=False)
    hosts.move_host(model, device)
    return Reader(model, processor, config.instruction)


def load_processor(config: ShotsHostConfig) -> Any:
    """Load what writes prompts for the host: a processor, or the tokenizer of a text-only host."""
    return hosts.load_processor(_name(config))


def load_context(config: ShotsHostConfig) -> int | None:
    """Return the number of tokens that the host reads, if its config says it."""
    return context_of(hosts.load_config(_name(config)))


def _name(config: ShotsHostConfig) -> str:
    if config.model is None:
        raise InputError("host.model: not given; name a folder, or a model on the hub")
    return config.model
