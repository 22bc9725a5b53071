"""The host that a config names, with its processor or tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eligo.demos.hosts.config import DemosHostConfig
from eligo.demos.hosts.prompt import reads_images
from eligo.demos.hosts.reader import Reader
from eligo.devices import resolve_device
from eligo.errors import InputError
from eligo.identity import GENERATOR, check_tokenizer, refuse_encoder
from eligo.pretrained import find_host


def load_reader(config: DemosHostConfig) -> Reader:
    """A model with images if it takes them, else a causal language model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    processor = load_processor(config)
    kind = AutoModelForImageTextToText if reads_images(processor) else AutoModelForCausalLM
    model: Any = _read(
        config, lambda **options: kind.from_pretrained(dtype=config.dtype, **options)
    )
    refuse_encoder(model.config, f"host.model: {config.model}")
    check_tokenizer(processor, model, f"host.model: {config.model}", least=GENERATOR)
    if not getattr(model, "is_quantized", False):
        model.to(resolve_device(config.device))
    return Reader(model.requires_grad_(False), processor, config.instruction)


def load_processor(config: DemosHostConfig) -> Any:
    """What writes prompts for the host: a processor, or a tokenizer where it reads text only."""
    from transformers import AutoConfig, AutoProcessor, AutoTokenizer

    about = _read(config, AutoConfig.from_pretrained)
    kind = AutoProcessor if hasattr(about, "vision_config") else AutoTokenizer
    return _read(config, kind.from_pretrained)


def _read(config: DemosHostConfig, read: Callable[..., Any]) -> Any:
    name = config.model
    if name is None:
        raise InputError("host.model: none was given; name a folder, or a model on the hub")
    found = find_host(name)
    try:
        local = Path(found).is_dir()
        return read(pretrained_model_name_or_path=found, local_files_only=local)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"host.model: got {name!r}, expected a folder with a model of transformers and its "
            f"processor or tokenizer, or the name of one on the hub; {reason}"
        ) from None
