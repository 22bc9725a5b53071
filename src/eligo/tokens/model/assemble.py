"""A LLaVA of parts: a vision tower, a projector, a language model (Liu et al., 2023).

    image ──> tower, layer `feature_layer` ──> projector (two layers) ──> vision tokens ──┐
    question ──> word embeddings ─────────────────────────────────────────────────────────┴──> LM

Tower and language model are those of a folder or of the hub; the projector is new and is trained by
`eligo tokens finetune`. The result is a stock `LlavaForConditionalGeneration` with its processor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.files import writing_folder
from eligo.io.reading import read_object, reading
from eligo.pretrained.identity import GENERATOR, check_tokenizer, refuse_encoder
from eligo.pretrained.load import (
    STOCK_FILES,
    find_encoder,
    load_part,
    load_stock,
    quiet_transformers,
)
from eligo.train.rng import seed_everything

IMAGE_TOKEN = "<image>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{{ '\nQuestion: ' + part['text'] + '\nAnswer:' }}{% endif %}{% endfor %}"
    "{% else %}{% for part in message['content'] %}{{ ' ' + part['text'] + eos_token }}{% endfor %}"
    "{% endif %}{% endfor %}"
)
"""`<image>`, then `Question: ... Answer:`; short, since text costs as much as vision tokens."""


@dataclass(frozen=True)
class _TowerKind:
    """How a family of towers is loaded and where its parts are."""

    config: str
    model: str
    table: str
    """Path of the position table."""
    has_cls: bool


_CLIP = _TowerKind(
    "CLIPVisionConfig", "CLIPVisionModel", "embeddings.position_embedding.weight", True
)
_SIGLIP = _TowerKind(
    "SiglipVisionConfig", "SiglipVisionModel", "embeddings.position_embedding.weight", False
)
_DINO = _TowerKind("Dinov2Config", "Dinov2Model", "embeddings.position_embeddings", True)
_TOWERS = {
    "clip": _CLIP, "clip_vision_model": _CLIP, "siglip": _SIGLIP, "siglip_vision_model": _SIGLIP,
    "dinov2": _DINO,
}  # fmt: skip


def assemble(
    tower: str,
    language: str,
    *,
    image_size: int | None = None,
    feature_layer: int | Sequence[int] = -2,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Return an untrained LLaVA and its processor.

    Args:
        tower: Folder or hub name of a CLIP, SigLIP or DINOv2 model.
        language: Folder or hub name of a causal language model with its tokenizer.
        image_size: Image side in pixels; by default the tower's own.
        feature_layer: Hidden state of the tower that gives the vision tokens, -1 is the last; of
            several, the features are concatenated.
        seed: Seed of the projector's weights.
    """
    from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    vision, kind, pixels = _load_tower(tower, image_size)
    config = vision.config
    count = config.num_hidden_layers
    layers = [feature_layer] if isinstance(feature_layer, int) else list(feature_layer)
    if not layers or any(not -count - 1 <= layer <= count for layer in layers):
        raise InputError(
            f"feature_layer: got {feature_layer}, expected {-count - 1} to {count}: the tower has "
            f"{count} layers"
        )
    seed_everything(seed)  # for the embedding of <image> and the projector
    text, tokenizer = _load_language(language)
    strategy = "default" if kind.has_cls else "full"
    grid = config.image_size // config.patch_size
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=config,
            text_config=text.config,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
            image_seq_length=grid**2,
            vision_feature_layer=layers[0] if len(layers) == 1 else layers,
            vision_feature_select_strategy=strategy,
            tie_word_embeddings=bool(text.config.tie_word_embeddings),
        )
    )
    core = model.model
    core.vision_tower.load_state_dict(vision.state_dict())
    core.language_model.load_state_dict(text.get_decoder().state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.generation_config = text.generation_config
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    processor = LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=config.patch_size,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(kind.has_cls),
        image_token=IMAGE_TOKEN,
        chat_template=CHAT_TEMPLATE,
    )
    return model.eval(), processor


def save_host(model: nn.Module, processor: Any, folder: str | Path) -> None:
    """Write a stock model folder, in bfloat16."""
    with (
        quiet_transformers(),
        writing_folder(folder, marker="processor_config.json", holds=STOCK_FILES) as temporary,
    ):
        model.to(torch.bfloat16).save_pretrained(temporary)  # pyright: ignore
        processor.save_pretrained(temporary)


def _load_tower(name: str, image_size: int | None) -> tuple[Any, _TowerKind, Any]:
    import transformers
    from transformers import AutoConfig, CLIPImageProcessorPil

    folder = find_encoder("tower", name)
    family = load_part(AutoConfig, folder).model_type
    if family not in _TOWERS:
        raise InputError(f"tower: {name} holds a {family}, expected CLIP, SigLIP or DINOv2")
    kind = _TOWERS[family]
    tower = load_stock(getattr(transformers, kind.model), folder, exact=False, dtype=torch.float32)
    config, patch = tower.config, tower.config.patch_size
    side = config.image_size if image_size is None else image_size
    if side < patch or side % patch:
        raise InputError(f"image_size: got {side}, expected a multiple of {patch}, the patch size")
    if side != config.image_size:
        tower = _resized(tower, kind, side)
    mean, std = _normalisation(folder)
    pixels = CLIPImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=mean,
        image_std=std,
    )
    return tower, kind, pixels


def _normalisation(folder: Path) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the tower's inputs."""
    names = ("preprocessor_config.json", "processor_config.json")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise InputError(
            f"tower: {folder} has no {names[0]}, which says how its inputs are normalised; copy it "
            "from the original model"
        )
    about = read_object(file, "transformers")
    about = about.get("image_processor", about)
    with reading(file, "image_mean and image_std, three numbers each"):
        mean, std = ([float(x) for x in about[name]] for name in ("image_mean", "image_std"))
        if len(mean) != 3 or len(std) != 3:
            raise ValueError("expected three channels")
    return mean, std


def _resized(tower: Any, kind: _TowerKind, side: int) -> Any:
    """Return the tower for images of another size, with its position table interpolated."""
    state = tower.state_dict()
    key = next(key for key in state if key.endswith(kind.table))
    state[key] = resize_positions(
        state[key], side // tower.config.patch_size, num_prefix=int(kind.has_cls)
    )
    config = type(tower.config)(**{**tower.config.to_dict(), "image_size": side})
    resized = type(tower)(config)
    resized.load_state_dict(state)
    return resized


def resize_positions(table: Tensor, side: int, *, num_prefix: int) -> Tensor:
    """Interpolate a table of positions, `(..., prefix + n * n, width)`, to `side * side` patches.

    >>> resize_positions(torch.zeros(1, 1 + 9, 4), 2, num_prefix=1).shape
    torch.Size([1, 5, 4])
    """
    prefix, grid = table[..., :num_prefix, :], table[..., num_prefix:, :]
    before, width = round(grid.shape[-2] ** 0.5), grid.shape[-1]
    square = grid.float().reshape(1, before, before, width).permute(0, 3, 1, 2)
    square = F.interpolate(square, size=(side, side), mode="bicubic", antialias=True)
    flat = square.permute(0, 2, 3, 1).reshape(*grid.shape[:-2], side * side, width)
    return torch.cat([prefix, flat.to(table.dtype)], -2)


def _load_language(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = find_encoder("language", name)
    where = f"language: {name}"
    tokenizer = load_part(AutoTokenizer, folder)
    model = load_stock(AutoModelForCausalLM, folder, exact=False, dtype=torch.float32)
    refuse_encoder(model.config, where)
    check_tokenizer(tokenizer, model, where, least=GENERATOR)
    if not hasattr(model, "lm_head") or tokenizer.eos_token_id is None:
        raise InputError(f"{where}: expected a causal language model whose tokenizer has an end")
    if tokenizer.convert_tokens_to_ids(IMAGE_TOKEN) in (None, tokenizer.unk_token_id):
        tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        with quiet_transformers():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return model, tokenizer
