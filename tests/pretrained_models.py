"""Tiny random models of the classes that people have: CLIP, SigLIP, encoders like BERT."""

import json
import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    CamembertConfig,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    DistilBertConfig,
    ElectraConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    SiglipConfig,
    SiglipModel,
    XLMRobertaConfig,
)

SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
WORDS = [
    "a", "photo", "of", "red", "ball", "left", "two", "boxes", "on", "the", "floor", "dog", "runs",
    "wet", "there", "is", "and", "gem", ".",
]  # fmt: skip
CLIP_COLOURS = ([0.48, 0.46, 0.41], [0.27, 0.26, 0.28])
# As the configs on the hub are written, with whole numbers as sizes and the old key of the class.
_PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": {
        "feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32,
        "do_resize": True, "do_center_crop": True, "do_normalize": True, "resample": 3,
        "image_mean": CLIP_COLOURS[0], "image_std": CLIP_COLOURS[1],
    },
    "siglip": {
        "image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32},
        "do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3,
        "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
}  # fmt: skip
_LIKE_BERT: dict[str, Any] = {
    "camembert": CamembertConfig,
    "distilbert": DistilBertConfig,
    "electra": ElectraConfig,
    "mpnet": MPNetConfig,
    "roberta": RobertaConfig,
    "xlm-roberta": XLMRobertaConfig,
}
LIKE_BERT = tuple(_LIKE_BERT)


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's own class, on letters; the end of a text is also its padding."""
    pieces = [*string.ascii_lowercase, *(f"{c}</w>" for c in string.ascii_lowercase), ".</w>", "."]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    vocabulary |= {"<|startoftext|>": len(pieces), "<|endoftext|>": len(pieces) + 1}
    return CLIPTokenizer(vocab=vocabulary, merges=[])


def word_tokenizer(single: str, special: list[str], **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; `single` places the special tokens."""
    vocabulary = {word: n for n, word in enumerate((*special, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=names["unk_token"]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    placed = [(token, vocabulary[token]) for token in special if token in single.split()]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=placed)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def siglip_tokenizer() -> PreTrainedTokenizerFast:
    """Returns no attention mask, adds only the end of a text, and pads with it."""
    tokenizer = word_tokenizer(
        "$A </s>", ["<unk>", "</s>"], unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.model_input_names = ["input_ids"]
    return tokenizer


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """[CLS] and [SEP] around a text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = dict(
        zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True
        )
    )
    return word_tokenizer("[CLS] $A [SEP]", special, **names)


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """<s> and </s> around a text; padding has id 1."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    return word_tokenizer(
        "<s> $A </s>", special, bos_token="<s>", cls_token="<s>", pad_token="<pad>",
        eos_token="</s>", sep_token="</s>", unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip


def whole_model(folder: Path, kind: str) -> str:
    """A tiny CLIP or SigLIP of 32 pixels and 4 x 4 patches, with tokenizer and image processor."""
    torch.manual_seed(5)
    vision = SIZES | {"image_size": 32, "patch_size": 8}
    text: dict[str, Any] = SIZES | {"max_position_embeddings": 24}
    if kind == "clip":
        tokenizer: Any = clip_tokenizer()
        ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        text |= {"vocab_size": len(tokenizer), "pad_token_id": 1, **ids}
        config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
        model: Any = CLIPModel(config)
    else:
        tokenizer = siglip_tokenizer()
        text |= {"vocab_size": len(tokenizer), "projection_size": 16}
        model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    for part in model.parameters():  # larger than the initial ones, so that scores differ
        part.data += 0.2 * torch.randn_like(part)
    model.save_pretrained(folder / kind)
    tokenizer.save_pretrained(folder / kind)
    (folder / kind / "preprocessor_config.json").write_text(json.dumps(_PROCESSORS[kind]))
    return str(folder / kind)


def like_bert(folder: Path, kind: str) -> str:
    """A tiny text encoder with its tokenizer; 18 positions, of which RoBERTa's can use 16."""
    torch.manual_seed(6)
    tokenizer = bert_tokenizer() if kind in ("distilbert", "electra") else roberta_tokenizer()
    ids = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    sizes: dict[str, Any] = SIZES | {"max_position_embeddings": 18, **ids}
    if kind == "distilbert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, **ids}
        sizes |= {"max_position_embeddings": 18}
    model = AutoModel.from_config(_LIKE_BERT[kind](**sizes))
    model.save_pretrained(folder / kind)
    tokenizer.save_pretrained(folder / kind)
    return str(folder / kind)


def sentence_transformer(folder: Path, *, nested: bool) -> str:
    """A tiny MiniLM (a BERT) as sentence-transformers saves it, now or in old versions."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    tokenizer, place = bert_tokenizer(), "0_Transformer" if nested else ""
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
    BertModel(BertConfig(**sizes)).save_pretrained(folder / "minilm" / place)
    tokenizer.save_pretrained(folder / "minilm" / place)
    module = {"idx": 0, "name": "0", "path": place}
    kind = {"type": "sentence_transformers.models.Transformer"}
    (folder / "minilm" / "modules.json").write_text(json.dumps([module | kind]))
    return str(folder / "minilm")
