"""Checks that a tokenizer belongs to its model, and a trained part to its host or encoder.

If a folder has no tokenizer, `transformers` builds one without a vocabulary, and every text becomes
unknown tokens. Fingerprints are saved by training and compared when a model is loaded.
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
_MAX_UNKNOWN = 0.8  # share of unknown tokens in the probe
ENCODER, GENERATOR = 0.9, 0.5
"""Least size of a tokenizer, as a share of the model's embedding table: a text encoder's table has
few unused rows; a generator may reserve many for tokens of other modalities."""
_ALIKE = 0.02  # relative: half precision rounds by less than 0.4 %

Weights = Mapping[str, float]
"""One value of every matrix, by its name."""


def check_tokenizer(processor: Any, model: Any, where: str, *, least: float) -> None:
    """Raise if a tokenizer (or that of a processor) cannot belong to this text model.

    `where` names the folder; `least` is `ENCODER` or `GENERATOR`.
    """
    tokenizer = getattr(processor, "tokenizer", None) or processor
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):
        return
    if rows is None or not hasattr(tokenizer, "get_vocab"):
        return
    vocabulary = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    special |= set(getattr(tokenizer, "added_tokens_encoder", ()))
    ordinary = [number for word, number in vocabulary.items() if word not in special]
    other, table = (
        "its tokenizer is another model's: got",
        "the rows of the model's embedding table",
    )
    problem = ""
    if not ordinary:
        problem = "holds no tokenizer, every text would be unknown tokens"
    elif max(ordinary) >= rows:
        problem = f"{other} token ids up to {max(ordinary)}, expected ids below {rows} ({table})"
    elif len(vocabulary) < least * rows:
        problem = f"{other} {len(vocabulary)} tokens, expected about {rows} ({table})"
    if problem:
        raise InputError(
            f"{where}: {problem}; copy the tokenizer files of this model there "
            "(tokenizer.json and the like)"
        )
    ids = tokenize(tokenizer, _PROBE, add_special_tokens=False)["input_ids"]
    unknown = sum(number == tokenizer.unk_token_id for number in ids) / len(ids) if ids else 1.0
    if unknown >= _MAX_UNKNOWN:
        _log.warning(
            "%s: its tokenizer reads %.0f%% of %r as unknown tokens; if your texts are English, "
            "it is not the right one", where, 100 * unknown, _PROBE,
        )  # fmt: skip


def refuse_encoder(config: Any, where: str) -> None:
    """Raise if a model is an encoder such as BERT, which cannot continue a text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    kind = getattr(config, "model_type", None)
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if kind in MASKED and not decodes and not hasattr(config, "vision_config"):
        raise InputError(
            f"{where}: is an encoder ({kind}), which cannot continue a text; expected a causal "
            "language model or a vision-language model"
        )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a hash of the vocabulary, the special tokens, and the tokens of a sentence."""
    special = getattr(tokenizer, "special_tokens_map", {})
    parts = [
        sorted(tokenizer.get_vocab().items()),
        sorted((name, str(token)) for name, token in special.items()),
        tokenize(tokenizer, _PROBE)["input_ids"],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def sampled_weights(model: Any) -> dict[str, float]:
    """Return one value of every matrix of a model, except for quantised ones."""
    return {
        name: float(f"{_sample(part):.6g}")
        for name, part in model.named_parameters()
        if _is_plain(part) and part.ndim > 1
    }


def same_weights(model: Any, stored: Weights) -> bool:
    """Whether a model has the sampled weights, in any precision; absent names are not compared."""
    parameters = dict(model.named_parameters())
    return all(
        abs(_sample(parameters[name]) - value) <= _ALIKE * abs(value) + 1e-6
        for name, value in stored.items()
        if name in parameters and _is_plain(parameters[name])
    )


def _is_plain(parameter: Any) -> bool:
    return parameter.is_floating_point() and parameter.numel() > 0 and not parameter.is_meta


def _sample(parameter: Any) -> float:
    """Return a value from the middle: the first and the last row are often padding."""
    return float(parameter.detach().flatten()[parameter.numel() // 3])
