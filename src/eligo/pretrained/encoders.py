"""Pretrained encoders: one vector for a text or an image, and tokenising for every text encoder.

    text ──> CLIP or SigLIP: its text features ─────────────────────> vector
    text ──> BERT and the like ──> vectors of tokens ──> pooling ───> vector
                                   (as a folder of sentence-transformers says, else their mean)

Shared by the families: patches (BERT word features), pixels and shots (text and image vectors).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.images import open_image, side_of
from eligo.io.reading import read_json, read_object, reading
from eligo.pretrained.chat import plain_text, tokenize, warn_truncated
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import fetch_modules, find_encoder, load_part, load_stock

Pooling = Literal["mean", "cls", "max", "lasttoken"]
_COUNTED = 1024  # texts tokenised at a time
_MODULES, _MODE = "modules.json", "pooling_mode_"  # of sentence-transformers
_WITH_POOLING = (
    "vit", "swin", "bert", "camembert", "mpnet", "roberta", "xlm-roberta",
)  # fmt: skip


def count_pieces(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the number of word pieces of each whole text, special tokens included."""
    plain = [plain_text(tokenizer, text) for text in texts]
    parts = (plain[start : start + _COUNTED] for start in range(0, len(plain), _COUNTED))
    return [
        len(ids) for part in parts for ids in tokenize(tokenizer, part, verbose=False)["input_ids"]
    ]


def tokenize_texts(
    tokenizer: Any, texts: Sequence[str], longest: int, *, padding: bool | str = True
) -> Any:
    """Return ids and mask of texts, as plain text, cut to `longest` word pieces."""
    return tokenize(
        tokenizer,
        [plain_text(tokenizer, text) for text in texts],
        padding=padding,
        truncation=True,
        max_length=longest,
        return_tensors="pt",
    )


class _TextVectors:
    """A frozen model that gives a vector to each text, batch by batch."""

    padding: bool | str = True

    def __init__(self, model: Any, tokenizer: Any, longest: int, batch_size: int) -> None:
        self.model, self.tokenizer, self.batch_size = model.eval(), tokenizer, batch_size
        self.longest = longest
        """Word pieces that the model reads; longer texts are cut."""

    @torch.no_grad()
    def texts(self, texts: Sequence[str], *, warn: bool = True) -> Float[Tensor, "texts dim"]:
        """Return a vector for each text, in float32 on the CPU; `warn` logs which texts are cut."""
        if warn:
            warn_truncated(texts, count_pieces(self.tokenizer, texts), self.longest)
        parts = []
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            inputs = tokenize_texts(self.tokenizer, batch, self.longest, padding=self.padding)
            parts.append(self._read(inputs.to(self.model.device)).float().cpu())
        return torch.cat(parts)

    def _read(self, inputs: Any) -> Float[Tensor, "texts dim"]:
        raise NotImplementedError


class ClipEncoder(_TextVectors):
    """A frozen CLIP or SigLIP model, or the text half of one: vectors of texts and images."""

    def __init__(self, model: Any, processor: Any, *, batch_size: int = 64) -> None:
        config = getattr(model.config, "text_config", model.config)
        tokenizer = getattr(processor, "tokenizer", processor)
        super().__init__(model, tokenizer, config.max_position_embeddings, batch_size)
        self.processor = processor
        self._is_whole = hasattr(model, "get_text_features")
        if self._is_whole:
            # SigLIP was trained on texts padded to the full length; CLIP gives the same either way.
            self.padding = "max_length"

    def _read(self, inputs: Any) -> Float[Tensor, "texts dim"]:
        if self._is_whole:
            return _vectors(self.model.get_text_features(**inputs))
        return self.model(**inputs).text_embeds

    @torch.no_grad()
    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """Return a vector for each image file, in float32 on the CPU; reads repeated files once."""
        unique, side = list(dict.fromkeys(paths)), side_of(self.processor)
        parts = []
        for start in range(0, len(unique), self.batch_size):
            opened = [open_image(path, side) for path in unique[start : start + self.batch_size]]
            pixels = self.processor.image_processor(opened, return_tensors="pt")["pixel_values"]
            pixels = pixels.to(self.model.device, self.model.dtype)
            parts.append(_vectors(self.model.get_image_features(pixel_values=pixels)).float().cpu())
        row = {path: number for number, path in enumerate(unique)}
        return torch.cat(parts)[[row[path] for path in paths]]


class SentenceEncoder(_TextVectors):
    """A frozen text model whose token vectors are pooled; reads no images."""

    def __init__(
        self, model: Any, tokenizer: Any, longest: int, pooling: Pooling, *, batch_size: int = 64
    ) -> None:
        super().__init__(model, tokenizer, longest, batch_size)
        self.pooling: Pooling = pooling

    def _read(self, inputs: Any) -> Float[Tensor, "texts dim"]:
        states = self.model(**inputs).last_hidden_state
        return pool_tokens(states.float(), inputs["attention_mask"].bool(), self.pooling)

    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """Raise: this encoder does not read images."""
        raise InputError(
            f"encoder: {type(self.model).__name__} reads text only, and cannot embed {paths[0]}; "
            "give the folder or hub name of a CLIP or SigLIP model"
        )


def pool_tokens(
    states: Float[Tensor, "texts tokens dim"], mask: Bool[Tensor, "texts tokens"], pooling: Pooling
) -> Float[Tensor, "texts dim"]:
    """Return one vector for each text; padding, left or right, is not read.

    >>> states = torch.tensor([[[1.0], [3.0], [8.0]]])
    >>> pool_tokens(states, torch.tensor([[True, True, False]]), "mean")
    tensor([[2.]])
    """
    real = mask.unsqueeze(-1)
    if pooling == "mean":
        return states.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp_min(1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1)
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    if pooling == "cls":
        chosen = places.masked_fill(~mask, mask.shape[1]).amin(1)
    else:
        chosen = places.masked_fill(~mask, -1).amax(1)
    chosen = chosen.clamp(0, mask.shape[1] - 1)
    return states[torch.arange(len(states), device=states.device), chosen]


def _vectors(output: Any) -> Tensor:
    """Return the vectors, which newer versions of transformers wrap in an output object."""
    return getattr(output, "pooler_output", output)


def load_encoder(key: str, name: str) -> ClipEncoder | SentenceEncoder:
    """Load a CLIP or SigLIP model, one of sentence-transformers, or another text model.

    `name` is a folder or a name on the hub; `key` names the setting in errors.
    """
    from transformers import AutoConfig

    config = load_part(AutoConfig, find_backbone(key, name, weights=False))
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        return load_clip(key, name)
    if config.model_type in ("clip", "clip_text_model"):
        return load_clip_text(key, name)
    return _load_sentences(key, name, config)


def load_clip(key: str, name: str) -> ClipEncoder:
    """Load a CLIP or SigLIP model with its processor; `key` names the setting in errors."""
    from transformers import AutoConfig, AutoModel, AutoProcessor

    folder = find_encoder(key, name)
    config = load_part(AutoConfig, folder)
    refusal = InputError(f"{key}: {name} holds a {config.model_type}, expected CLIP or SigLIP")
    if not hasattr(config, "text_config") or not hasattr(config, "vision_config"):
        raise refusal
    processor = load_part(AutoProcessor, folder)
    model = load_stock(AutoModel, folder, exact=False)
    if not hasattr(model, "get_text_features"):
        raise refusal
    check_tokenizer(processor, model.text_model, f"{key}: {name}", least=ENCODER)
    return ClipEncoder(model, processor)


def load_clip_text(key: str, name: str) -> ClipEncoder:
    """Load the text half of a CLIP model; `key` names the setting in errors."""
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    folder = find_encoder(key, name)
    tokenizer = load_part(AutoTokenizer, folder)
    model = load_stock(CLIPTextModelWithProjection, folder, exact=False)
    check_tokenizer(tokenizer, model, f"{key}: {name}", least=ENCODER)
    return ClipEncoder(model, tokenizer, batch_size=256)


def _load_sentences(key: str, name: str, config: Any) -> SentenceEncoder:
    from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    if hasattr(config, "vision_config") or hasattr(config, "num_channels"):
        raise InputError(
            f"{key}: {name} holds a {config.model_type}, which gives texts no vector; expected "
            "CLIP, SigLIP, or a text model such as one of sentence-transformers"
        )
    root = find_encoder(key, name)
    fetch_modules(name, root, _MODULES)
    pooling, longest = _read_modules(root)
    folder = find_backbone(key, name)
    # T5 and the like: their encoder alone.
    encodes = config.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    kind = AutoModelForTextEncoding if encodes else AutoModel
    options = {"dtype": torch.float32, **pooling_option(config)}
    model = load_stock(kind, folder, exact=False, **options)
    tokenizer = load_part(AutoTokenizer, folder)
    check_tokenizer(tokenizer, model, f"{key}: {name}", least=ENCODER)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    limits = [longest or tokenizer.model_max_length, tokenizer.model_max_length]
    if getattr(config, "max_position_embeddings", None):
        limits.append(max_pieces(model))
    return SentenceEncoder(model, tokenizer, min(limits), pooling)


def _read_modules(folder: Path) -> tuple[Pooling, int | None]:
    """Return how a folder of sentence-transformers pools, and the word pieces that it reads.

    Vectors are compared by cosine, so a module that normalises them is left out.
    """
    if not (folder / _MODULES).is_file():
        return "mean", None
    with reading(folder / _MODULES, "the modules of a model of sentence-transformers"):
        modules = [
            (str(entry["type"]).rpartition(".")[2], folder / str(entry["path"]))
            for entry in read_json(folder / _MODULES)
        ]
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer"]:
        return "mean", None
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise InputError(
            f"{folder / _MODULES}: got the modules {', '.join(kinds)}, expected Transformer, "
            "Pooling and perhaps Normalize; embed with sentence-transformers itself, and give "
            "--vectors FILE"
        )
    about = read_object(modules[1][1] / "config.json", "sentence-transformers")
    # Newer versions name the mode; older ones have a key for each, such as pooling_mode_cls_token.
    chosen = [
        key.removeprefix(_MODE).removesuffix("_tokens").removesuffix("_token")
        for key, on in about.items()
        if key.startswith(_MODE) and on is True
    ]
    if mode := about.get("pooling_mode"):
        chosen = [mode] if isinstance(mode, str) else list(mode)
    known: dict[str, Pooling] = {mode: mode for mode in get_args(Pooling)}
    if len(chosen) != 1 or chosen[0] not in known:
        got = ", ".join(map(str, chosen)) or "none"
        raise InputError(
            f"{modules[1][1] / 'config.json'}: got the pooling {got}, expected one of "
            f"{', '.join(known)}; embed with sentence-transformers itself, and give "
            "--vectors FILE"
        )
    settings = folder / "sentence_bert_config.json"
    longest = None
    if settings.is_file():
        longest = read_object(settings, "sentence-transformers").get("max_seq_length")
    return known[chosen[0]], longest if isinstance(longest, int) else None


def find_backbone(key: str, name: str, *, weights: bool = True) -> Path:
    """Return the folder of a model; in an old one of sentence-transformers, the first module's."""
    folder = find_encoder(key, name, weights=weights)
    if not (folder / "config.json").is_file():
        modules = sorted(path.parent for path in folder.glob("0_*/config.json"))
        folder = modules[0] if modules else folder
    return folder


def pooling_option(config: Any) -> dict[str, bool]:
    """Return the option that omits the unused pooling layer, for models that have one."""
    return {"add_pooling_layer": False} if config.model_type in _WITH_POOLING else {}


def max_pieces(backbone: nn.Module) -> int:
    """Return the number of word pieces that a text encoder can read."""
    config: Any = backbone.config
    embeddings: Any = getattr(backbone, "embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    # RoBERTa and MPNet count positions from their padding id on.
    first = getattr(positions, "padding_idx", None)
    return config.max_position_embeddings - (0 if first is None else first + 1)
