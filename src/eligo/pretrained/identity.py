"""Whether parts belong together: a tokenizer and its model, a model and what was trained with it.

`transformers` builds a tokenizer without any vocabulary where a folder holds none, and every text
becomes unknown tokens. Fingerprints are saved by a training and compared when its result is used.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from eligo.errors import InputError
from eligo.pretrained.chat import tokenize

_log = logging.getLogger("eligo")
_PROBE = "a photo of a red ball left of two boxes on the floor"
_UNKNOWN = 0.8  # share of unknown tokens from which on a tokenizer does not read the probe
ENCODER, GENERATOR = 0.9, 0.5
"""Least size of a tokenizer, as a share of the model's embedding table. A text encoder's table is
padded by a few rows at most; a generator may reserve many for tokens of other media."""
_ALIKE = 0.02  # relative: half precision rounds by less than 0.4 %

Weights = Mapping[str, float]
"""One value of every matrix, by its name."""


def check_tokenizer(processor: Any, model: Any, where: str, *, least: float) -> None:
    """Raise if a tokenizer (or the one of a processor) cannot be the one of this text model.

    `where` names the folder; `least` is `ENCODER` or `GENERATOR`.
    """
    tokenizer = getattr(processor, "tokenizer", None) or processor
    rows = _table_rows(model)
    if rows is None or not hasattr(tokenizer, "get_vocab"):
        return
    vocabulary = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    special |= set(getattr(tokenizer, "added_tokens_encoder", ()))
    ordinary = [number for word, number in vocabulary.items() if word not in special]
    remedy = "copy the tokenizer's files of this very model there (tokenizer.json and the like)"
    if not ordinary:
        raise InputError(
            f"{where}: holds no tokenizer, every text would be unknown tokens; {remedy}"
        )
    if max(ordinary) >= rows:
        raise InputError(
            f"{where}: its tokenizer is another model's: got token ids up to {max(ordinary)}, "
            f"expected ids below {rows}, the rows of the model's embedding table; {remedy}"
        )
    if len(vocabulary) < least * rows:
        raise InputError(
            f"{where}: its tokenizer is another model's: got {len(vocabulary)} tokens, expected "
            f"about {rows}, the rows of the model's embedding table; {remedy}"
        )
    if (share := unknown_share(tokenizer, _PROBE)) >= _UNKNOWN:
        _log.warning(
            "%s: its tokenizer reads %.0f%% of %r as unknown tokens; if your texts are English, "
            "it is not the right one", where, 100 * share, _PROBE,
        )  # fmt: skip


def unknown_share(tokenizer: Any, text: str) -> float:
    """Share of a text's tokens that are unknown; 1 where it has no tokens at all.

    0 for tokenizers whose unknown token has another meaning as well, as the end token of CLIP.
    """
    ids = tokenize(tokenizer, text, add_special_tokens=False)["input_ids"]
    return sum(number == tokenizer.unk_token_id for number in ids) / len(ids) if ids else 1.0


def refuse_encoder(config: Any, where: str) -> None:
    """Raise if a model is an encoder (BERT and the like), which cannot continue a text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    kind = getattr(config, "model_type", None)
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if kind in MASKED and not decodes and not hasattr(config, "vision_config"):
        raise InputError(
            f"{where}: is an encoder ({kind}), which sees the whole text and cannot continue it; "
            "expected a causal language model or a vision-language model"
        )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Of all tokens with their ids, the special ones, and how a sentence is split."""
    said = tokenize(tokenizer, _PROBE)["input_ids"]
    special = getattr(tokenizer, "special_tokens_map", {})
    parts = [
        sorted(tokenizer.get_vocab().items()),
        sorted((name, str(token)) for name, token in special.items()),
        said,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def sampled_weights(model: Any) -> dict[str, float]:
    """One value of every matrix of a model; what is quantised is passed over."""
    return {
        name: float(f"{_one(part):.6g}")
        for name, part in model.named_parameters()
        if _is_plain(part) and part.ndim > 1
    }


def same_weights(model: Any, stored: Weights) -> bool:
    """Whether a model has the weights that were sampled, in whatever precision.

    What it does not have under that name is not compared.
    """
    there = dict(model.named_parameters())
    pairs = [
        (_one(there[name]), then)
        for name, then in stored.items()
        if name in there and _is_plain(there[name])
    ]
    return all(abs(now - then) <= _ALIKE * abs(then) + 1e-6 for now, then in pairs)


def _is_plain(parameter: Any) -> bool:
    return parameter.is_floating_point() and parameter.numel() > 0 and not parameter.is_meta


def _one(parameter: Any) -> float:
    """A value from the inside: the first and the last row are often padding."""
    return float(parameter.detach().flatten()[parameter.numel() // 3])


def _table_rows(model: Any) -> int | None:
    """Rows of the embedding table of the words."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return getattr(table, "num_embeddings", None)
