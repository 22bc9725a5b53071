"""Attention rows for methods that rank by them, without `output_attentions`.

Inside `recording`, a model's config names an attention function that passes queries and keys
to the recorder of its module, if the thread has one, and then calls the original implementation
(SDPA keeps its kernels). Recorders belong to a thread, and a layer sets and uses its own within one
call, so threads that share a model never get each other's rows.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from eligo.errors import InputError

_CHUNK = 512  # query rows at a time, where all of them are needed
_BASES = ("sdpa", "eager")
_PREFIX = "eligo_rows_"

Recorder = Callable[[Tensor, Tensor, Tensor | None, float, float | None], None]
"""Called with queries, keys, mask, scaling and cap of the logits of one attention call."""

_thread = threading.local()
_lock = threading.Lock()
_recording: Counter[int] = Counter()  # open contexts, per id of a config


def recorders() -> dict[nn.Module, Recorder]:
    """Return the recorders of this thread, by attention module."""
    return _thread.__dict__.setdefault("recorders", {})


def attention_of(config: Any) -> str:
    """Return the attention implementation of a model, recorded or not."""
    return config._attn_implementation.removeprefix(_PREFIX)


@contextmanager
def recording(config: Any, name: str) -> Iterator[None]:
    """Inside, attention modules with this config call their recorders; contexts may overlap."""
    base = attention_of(config)
    if base not in _BASES:
        raise InputError(
            f"{name} runs {base!r} attention, which gives no attention rows; expected sdpa or "
            "eager: load the model with attn_implementation='sdpa'"
        )
    with _lock:
        _recording[id(config)] += 1
        config._attn_implementation = _PREFIX + base
    try:
        yield
    finally:
        with _lock:
            _recording[id(config)] -= 1
            if not _recording[id(config)]:
                del _recording[id(config)]
                config._attn_implementation = base


def _attend(
    base: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> Any:
    recorder = recorders().get(module)
    if recorder is not None:
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        cap = kwargs.get("softcap") if base == "eager" else None  # SDPA has none
        recorder(query.detach(), key.detach(), attention_mask, scaling, cap)
    if base == "eager":
        # Each modeling file defines its own.
        attend = sys.modules[type(module).__module__].eager_attention_forward
    else:
        attend = ALL_ATTENTION_FUNCTIONS[base]
    return attend(module, query, key, value, attention_mask, **kwargs)


# Never unregistered: a thread may have read the name when another leaves the last context.
for _base in _BASES:
    AttentionInterface.register(_PREFIX + _base, partial(_attend, _base))
    AttentionMaskInterface.register(_PREFIX + _base, ALL_MASK_ATTENTION_FUNCTIONS[_base])


@torch.no_grad()
def attention_of_rows(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    mask: Tensor | None,
    scaling: float,
    rows: Int[Tensor, "batch rows"],
    cap: float | None = None,
) -> Float[Tensor, "batch rows keys"]:
    """Return the attention of the queries at `rows`, averaged over heads, in float32.

    `cap`: largest absolute value of a logit (Gemma 2).
    """
    batch, heads, num_queries, dim = query.shape
    key_heads, num_keys, num_rows = key.shape[1], key.shape[2], rows.shape[1]
    rows = rows.to(query.device)
    index = rows[:, None, :, None]  # (batch, 1, rows, 1)
    picked = query.gather(2, index.expand(batch, heads, num_rows, dim)).float()
    # Heads that share a key head are adjacent.
    picked = picked.reshape(batch, key_heads, -1, dim)
    logits = picked @ key.float().transpose(-1, -2) * scaling
    logits = logits.reshape(batch, heads, num_rows, num_keys)
    if cap is not None:
        logits = cap * (logits / cap).tanh()
    if mask is None:
        columns = torch.arange(num_keys, device=query.device)
        visible = columns <= index + num_keys - num_queries
    else:
        mask = mask.detach().expand(batch, -1, -1, -1)
        visible = mask.gather(2, index.expand(batch, mask.shape[1], num_rows, num_keys))
    return _masked(logits, visible).softmax(-1).mean(1)


@torch.no_grad()
def attention_received(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    mask: Tensor | None,
    scaling: float,
) -> Float[Tensor, "batch keys"]:
    """Return the attention that each key receives, averaged over queries and heads, in float32."""
    total = query.new_zeros((query.shape[0], key.shape[2]), dtype=torch.float32)
    keys = key.float().transpose(-1, -2)
    for start in range(0, query.shape[2], _CHUNK):
        rows = slice(start, start + _CHUNK)
        logits = query[:, :, rows].float() @ keys * scaling
        if mask is not None:
            logits = _masked(logits, mask.detach()[:, :, rows])
        total += logits.softmax(-1).mean(1).sum(1)
    return total / query.shape[2]


def _masked(logits: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return logits.masked_fill(~mask, -torch.inf)
    return logits + mask.float()
