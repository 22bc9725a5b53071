"""Build encoders and networks from configs: pretrained, small and random, or saved."""

from math import isfinite
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    SiglipTextModel,
    ViTConfig,
    ViTModel,
)
from transformers.image_processing_base import ImageProcessingMixin

from eligo.errors import InputError
from eligo.io.reading import reading
from eligo.patches.config import (
    EncodersConfig,
    MatchConfig,
    RetrievalConfig,
    SmallTextConfig,
    SmallVisionConfig,
)
from eligo.patches.model.baselines import GlobalCosine, TwoSidedMax
from eligo.patches.model.encoders import (
    ImageEncoder,
    Layout,
    MlpHead,
    TextEncoder,
    layout_of,
)
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.pretrained.encoders import find_backbone, max_pieces, pooling_option
from eligo.pretrained.identity import ENCODER, check_tokenizer, tokenizer_fingerprint
from eligo.pretrained.load import find_encoder, load_part, load_stock
from eligo.pretrained.untrusted import check_stock_folder
from eligo.scenes.phrases import VOCABULARY

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
FIRST_WORD = len(SPECIAL)
"""Token id of word 0 of the scenes' vocabulary, in the small text encoder."""
_HALVES = (0.5, 0.5, 0.5)
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
_MODULES = "modules.json"  # of sentence-transformers
_WHOLE_MODELS = ("clip", "siglip")  # with a vision and a text half
_TEXT_MODELS = (
    "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta",
    "clip_text_model", "siglip_text_model",
)  # fmt: skip
_UNUSED = {  # parts that only their own pooled vectors need
    "clip_vision_model": "post_layernorm", "siglip_vision_model": "head",
    "siglip_text_model": "head",
}  # fmt: skip


def build_net(
    match: MatchConfig, embed_dim: int, layout: Layout, *, compat: bool = False
) -> CrossSparseAggrNet | LateInteraction | GlobalCosine | TwoSidedMax:
    """Build the matching network; `compat`: the published one (open and paper only)."""
    if match.kind == "global":
        return GlobalCosine()
    if match.kind == "filip":
        return TwoSidedMax(embed_dim)
    if match.kind == "late":
        return LateInteraction(
            embed_dim, match.sparse_ratio, match.typicality, word_weights=match.word_weights,
            relevance=match.relevance,
            num_prefix_tokens=layout.num_prefix, grid_hw=layout.grid_hw,
        )  # fmt: skip
    return CrossSparseAggrNet(
        embed_dim, layout.num_patches, match.sparse_ratio, match.aggr_ratio, match.kind == "paper",
        match.top_k, False, match.temperature, match.dual_aggr, match.beta,
        compat=compat,
        num_prefix_tokens=None if compat else layout.num_prefix,
        grid_hw=layout.grid_hw,
        decision="topk" if compat else match.decision,
        typicality=match.typicality if match.kind == "open" and not compat else 1.0,
        kernel=match.kernel,
    )  # fmt: skip


def build_encoders(
    config: RetrievalConfig,
) -> tuple[RetrievalConfig, ImageEncoder, TextEncoder]:
    """Return the config completed with image size and colours, and its encoders."""
    named = config.encoders
    # First: a folder without a tokenizer is refused before weights are read.
    tokenizer = scene_tokenizer() if named.text is None else load_tokenizer(named.text)
    if named.vision is None:
        vision = _small_vision(named.small_vision)
        size, mean, std = named.small_vision.image_size, _HALVES, _HALVES
    else:
        mean, std = named.image_mean, named.image_std
        if mean is None or std is None:
            mean, std = image_colours(named.vision)
        vision = _pretrained("vision", named.vision)
        size = named.image_size or vision.config.image_size
    mean, std = named.image_mean or mean, named.image_std or std
    completed = {
        "encoders.image_size": size, "encoders.image_mean": mean, "encoders.image_std": std,
    }  # fmt: skip
    if named.text is None:
        text = _small_text(named)
    else:
        text = _pretrained("text", named.text)
        check_tokenizer(tokenizer, text, f"encoders.text: {named.text}", least=ENCODER)
        if named.special_words is None:
            completed["encoders.special_words"] = _matches_special_words(named.text, text.config)
        if not config.match.dense:  # not read: no reason to refuse an encoder of short texts
            limit = min(named.max_dense_words, max_pieces(text))
            completed["encoders.max_dense_words"] = limit
    config = config.replace(completed)
    image_encoder, text_encoder = assemble(config.encoders, vision, text, tokenizer)
    # Pretrained backbones learn more slowly than new ones.
    for encoder, given in ((image_encoder, named.vision), (text_encoder, named.text)):
        encoder.lr_multiplier = {"backbone": named.backbone_lr if given else 1.0}
    return config, image_encoder, text_encoder


def load_encoders(encoders: EncodersConfig, folder: Path) -> tuple[ImageEncoder, TextEncoder]:
    """Load encoders from the folder of a saved model, with random heads."""
    vision, text = (_pretrained(n, str(folder / n), exact=True) for n in ("vision", "text"))
    tokenizer, where = load_tokenizer(str(folder / "text")), str(folder / "text")
    check_tokenizer(tokenizer, text, where, least=ENCODER)
    if encoders.tokenizer not in (None, tokenizer_fingerprint(tokenizer)):
        raise InputError(
            f"{where}: its tokenizer is not the one that the model was trained with; put back the "
            "tokenizer's files that were saved with it"
        )
    return assemble(encoders, vision, text, tokenizer)


def assemble(
    encoders: EncodersConfig, vision: Any, text: Any, tokenizer: Any
) -> tuple[ImageEncoder, TextEncoder]:
    """Build encoders with new heads around two backbones."""
    if encoders.image_size is None or encoders.image_mean is None or encoders.image_std is None:
        raise InputError(
            "encoders: got no image_size, image_mean or image_std, expected all three, as "
            "RetrievalModel.save_pretrained writes them"
        )
    width, colours = encoders.embed_dim, (encoders.image_mean, encoders.image_std)
    lengths = (encoders.max_words, encoders.max_dense_words)
    layers = (-1,) if encoders.vision is None else encoders.vision_layer
    count = len(getattr(vision.config, "depths", ())) or vision.config.num_hidden_layers
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise InputError(
                f"encoders.vision_layer: got {layer}, expected {-count - 1} to {count}: the vision "
                f"model has {count} layers"
            )
    return (
        ImageEncoder(
            vision, width, encoders.image_size, *colours, layers=layers,
            head=_mlp_head(encoders, len(layers) * vision.config.hidden_size),
        ),
        TextEncoder(
            text, tokenizer, width, *lengths, special_words=encoders.special_words is not False,
            head=_mlp_head(encoders, text.config.hidden_size),
        ),
    )  # fmt: skip


def _mlp_head(encoders: EncodersConfig, width: int) -> MlpHead | None:
    if encoders.head == "linear":
        return None
    return MlpHead(width, encoders.embed_dim, encoders.dropout)


def _sizes(small: SmallVisionConfig | SmallTextConfig) -> dict[str, Any]:
    return {
        "hidden_size": small.width,
        "num_hidden_layers": small.layers,
        "num_attention_heads": small.heads,
        "intermediate_size": 4 * small.width,
    }


def _small_vision(small: SmallVisionConfig) -> ViTModel:
    config = ViTConfig(**_sizes(small), image_size=small.image_size, patch_size=small.patch_size)
    return ViTModel(config, add_pooling_layer=False)


def _small_text(encoders: EncodersConfig) -> BertModel:
    config = BertConfig(
        **_sizes(encoders.small_text),
        vocab_size=FIRST_WORD + len(VOCABULARY),
        max_position_embeddings=max(encoders.max_words, encoders.max_dense_words),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
    )
    return BertModel(config, add_pooling_layer=False)


def scene_tokenizer() -> PreTrainedTokenizerFast:
    """Return a BERT-like tokenizer whose words are the scenes' vocabulary."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **dict(zip(names, SPECIAL, strict=True)),
    )


def read_backbone_config(key: str, name: str) -> Any:
    """Read the `transformers` config of a supported vision or text model.

    Of a whole CLIP or SigLIP model it is the config of that half.
    """
    config = load_part(AutoConfig, find_backbone(f"encoders.{key}", name, weights=False))
    if config.model_type in _WHOLE_MODELS:
        config = getattr(config, f"{key}_config")
    if key == "vision":
        layout_of(config, 0)  # raises for other models
    elif config.model_type not in _TEXT_MODELS:
        raise InputError(
            f"text: got a model of type {config.model_type!r}, expected {', '.join(_TEXT_MODELS)}, "
            "or a whole CLIP or SigLIP model"
        )
    return config


def _pretrained(key: str, name: str, *, exact: bool = False) -> Any:
    """Load a backbone in float32; `exact`: saved by eligo, without unused heads."""
    config = read_backbone_config(key, name)
    options = {"config": config, "dtype": torch.float32, **pooling_option(config)}
    folder = find_backbone(f"encoders.{key}", name)
    # AutoModel does not know this half by itself.
    kind = SiglipTextModel if config.model_type == "siglip_text_model" else AutoModel
    model = load_stock(kind, folder, exact=exact, **options)
    if (unused := _UNUSED.get(config.model_type)) and hasattr(model, unused):
        getattr(model, unused).requires_grad_(False)
    return model


def _matches_special_words(name: str, config: Any) -> bool:
    root = find_encoder("encoders.text", name, weights=False)
    return config.model_type == "bert" and not (root / _MODULES).is_file()


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a text model; raise for a folder without one."""
    folder = find_backbone("encoders.text", name, weights=False)
    check_stock_folder(folder)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise InputError(
            f"{name}: holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the "
            "tokenizer files of this model there"
        )
    return load_part(AutoTokenizer, folder)


def image_colours(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return image mean and deviation of a model's image processor.

    Without one they are one half each, except for CLIP and SigLIP, which are refused.
    """
    folder = find_backbone("encoders.vision", name, weights=False)
    config = check_stock_folder(folder)
    if not any((folder / file).is_file() for file in _PROCESSOR_FILES):
        if str(config.get("model_type")).startswith(_WHOLE_MODELS):
            raise InputError(
                f"encoders.vision: {name} holds no image processor ({_PROCESSOR_FILES[0]}), so the "
                "normalisation of its images is unknown; copy that file of this model there, or "
                "set encoders.image_mean and encoders.image_std"
            )
        return _HALVES, _HALVES
    with reading(name, f"image_mean and image_std of three numbers in {_PROCESSOR_FILES[0]}"):
        settings, _ = ImageProcessingMixin.get_image_processor_dict(folder, local_files_only=True)
        mean, std = (
            tuple(map(float, settings.get(key, _HALVES))) for key in ("image_mean", "image_std")
        )
        if not all(len(values) == 3 and all(map(isfinite, values)) for values in (mean, std)):
            raise ValueError(f"got {mean} and {std}")
    return mean, std
