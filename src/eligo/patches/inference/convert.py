"""Convert LAPS and SEPS checkpoints to a `RetrievalModel`.

Their training code saves `{"model": state_dict, "opt": argparse.Namespace, ...}`: encoders under
`img_enc.{visual_encoder,vision_proj}` and `txt_enc.{bert,fc}`, the matching network under
`cross_net.`, all perhaps with the prefix `module.`. The file is read with `weights_only=True`, and
only `argparse.Namespace` is allowed beside tensors. The encoders' configs are not in the file: they
come from the models that training began with.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel

from eligo.errors import InputError
from eligo.io.reading import reading
from eligo.patches.config import RetrievalConfig
from eligo.patches.model.build import (
    assemble,
    build_net,
    image_colours,
    load_tokenizer,
    read_backbone_config,
)
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.encoders import pooling_option
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import quiet_transformers
from eligo.train.weights import read_pickled

State = dict[str, Tensor]

_PARTS = {
    "img_enc.visual_encoder.": "vision",
    "img_enc.vision_proj.": "image_head",
    "txt_enc.bert.": "text",
    "txt_enc.fc.": "text_head",
    "cross_net.": "net",
}
_SHOWN = 6  # keys named in an error


def convert_checkpoint(
    path: str | Path, vision: str, text: str, changes: Mapping[str, Any] | None = None
) -> tuple[RetrievalModel, list[str]]:
    """Return the model of a checkpoint, and the keys of the file that are not used.

    `vision` and `text`: folders (or hub names) of the models that training began with; only their
    configs, the tokenizer and the image normalisation are read. Ratios come from the checkpoint's
    options if it has them; `changes` (dotted keys of `RetrievalConfig`) override them.
    """
    path = Path(path)
    state, options = read_checkpoint(path)
    parts, unused = _split_by_part(path, state)
    backbones = {}
    for key, name in (("vision", vision), ("text", text)):
        backbones[key], unexpected = _backbone(path, key, name, parts[key])
        unused += unexpected
    mean, std = image_colours(vision)
    settings = {
        "encoders.image_size": backbones["vision"].config.image_size,
        "encoders.image_mean": mean,
        "encoders.image_std": std,
        "encoders.embed_dim": len(parts["image_head"]["weight"]),
        "match.kind": "paper" if "hrpa.relevance_mlp.0.weight" in parts["net"] else "open",
        "match.typicality": 1.0,
        "match.dual_aggr": not any(key.startswith("aggr_net.weight.") for key in parts["net"]),
    }
    for name in ("sparse_ratio", "aggr_ratio"):
        if name in options:
            settings[f"match.{name}"] = options[name]
    config = RetrievalConfig().replace(settings | dict(changes or {}))
    tokenizer = load_tokenizer(text)
    check_tokenizer(tokenizer, backbones["text"], f"--text {text}", least=ENCODER)
    image_encoder, text_encoder = assemble(
        config.encoders, backbones["vision"], backbones["text"], tokenizer
    )
    net = build_net(config.match, config.encoders.embed_dim, image_encoder.layout)
    _fill(path, "img_enc.vision_proj", image_encoder.head, parts["image_head"])
    _fill(path, "txt_enc.fc", text_encoder.head, parts["text_head"])
    _fill(path, "cross_net", net, parts["net"])
    return RetrievalModel(config, image_encoder, text_encoder, net).eval(), sorted(unused)


def read_checkpoint(path: Path) -> tuple[State, dict[str, Any]]:
    """Return weights without `module.`, and the training options, from an untrusted file."""
    content = read_pickled(
        path,
        holds="tensors and options",
        made_by="LAPS or SEPS saved with torch.save",
        allowed=[Namespace],
    )
    options: Any = {}
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        options = content.get("opt", {})
        content = content["model"]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"{path}: expected weights by name, or those under 'model'")
    options = vars(options) if isinstance(options, Namespace) else options
    return {key.removeprefix("module."): value for key, value in content.items()}, options


def _split_by_part(path: Path, state: State) -> tuple[dict[str, State], list[str]]:
    """Return weights by part, and the keys that belong to no part."""
    parts: dict[str, State] = {part: {} for part in _PARTS.values()}
    unused = []
    for key, value in state.items():
        prefix = next((prefix for prefix in _PARTS if key.startswith(prefix)), None)
        if prefix is None:
            unused.append(key)
        else:
            parts[_PARTS[prefix]][key.removeprefix(prefix)] = value
    if missing := [prefix for prefix, part in _PARTS.items() if not parts[part]]:
        raise InputError(
            f"{path}: no weights under {', '.join(missing)}; got {', '.join(list(state)[:_SHOWN])}"
        )
    return parts, unused


def _backbone(path: Path, key: str, name: str, state: State) -> tuple[Any, list[str]]:
    """Return a backbone loaded by `transformers`, which maps old names of keys."""
    config = read_backbone_config(key, name)
    options = pooling_option(config)
    with reading(path, f"the weights of {name}"), quiet_transformers():  # reported below
        kind = type(AutoModel.from_config(config, trust_remote_code=False, **options))
        model, info = kind.from_pretrained(
            None, config=config, state_dict=state, output_loading_info=True,
            ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    wrong = [*info["missing_keys"], *(str(entry) for entry in info["mismatched_keys"])]
    if wrong:
        raise InputError(
            f"{path}: its {key} encoder is not the one of {name}: {', '.join(wrong[:_SHOWN])} "
            "missing or of another shape"
        )
    prefix = next(prefix for prefix, part in _PARTS.items() if part == key)
    return model.float(), [prefix + unused for unused in info["unexpected_keys"]]


def _fill(path: Path, name: str, module: nn.Module, state: State) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(
            f"{path}: the weights under {name} do not fit; {' '.join(str(error).split())}; if "
            "sizes differ, set sparse_ratio and aggr_ratio as in its training"
        ) from None
