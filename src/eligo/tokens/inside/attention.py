"""Attention rows for methods that rank by them, without `output_attentions`.

Spec: "Attention scores". While it is entered, a `RowRecorder` stands in the attention registry of
`transformers` before the implementation a model uses: it delegates to it (SDPA keeps its kernels)
and computes the few rows that were asked for from the same queries and keys. The model's config
names the recorder meanwhile; on exit name and registry entries are gone.
"""

import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eligo.errors import InputError

_CHUNK = 512  # query rows at a time, where all of them are needed


class RowRecorder:
    """Hands queries and keys of chosen attention modules to whoever asked for them."""

    def __init__(self, config: Any, what: str) -> None:
        self.config = config
        self.base: str = config._attn_implementation
        self.name = f"eligo_rows_{uuid4().hex[:8]}"
        self.listeners: dict[nn.Module, Callable[[Tensor, Tensor, Tensor | None, float], None]] = {}
        if self.base not in ("sdpa", "eager"):
            raise InputError(
                f"{what} runs {self.base!r} attention, which gives no attention rows; expected "
                "sdpa or eager: load the model with attn_implementation='sdpa'"
            )

    def __enter__(self) -> "RowRecorder":
        ALL_ATTENTION_FUNCTIONS[self.name] = self._attend
        AttentionMaskInterface.register(self.name, ALL_MASK_ATTENTION_FUNCTIONS[self.base])
        self.config._attn_implementation = self.name
        return self

    def __exit__(self, *_: object) -> None:
        self.config._attn_implementation = self.base
        del ALL_ATTENTION_FUNCTIONS[self.name]
        # Masks are looked up in the class-wide registry, which has no way to unregister.
        AttentionMaskInterface._global_mapping.pop(self.name, None)

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        listener = self.listeners.get(module)
        if listener is not None:
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            listener(query.detach(), key.detach(), attention_mask, scaling)
        if self.base == "eager":
            # Every modeling file has its own.
            attend = sys.modules[type(module).__module__].eager_attention_forward
        else:
            attend = ALL_ATTENTION_FUNCTIONS[self.base]
        return attend(module, query, key, value, attention_mask, **kwargs)


@torch.no_grad()
def attention_of_rows(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    mask: Tensor | None,
    scaling: float,
    rows: Int[Tensor, "batch rows"],
) -> Float[Tensor, "batch rows keys"]:
    """What some queries of each row of the batch attend to, mean over heads, in float32."""
    batch, heads, num_queries, dim = query.shape
    key_heads, num_keys, num_rows = key.shape[1], key.shape[2], rows.shape[1]
    rows = rows.to(query.device)
    index = rows[:, None, :, None]  # (batch, 1, rows, 1)
    picked = query.gather(2, index.expand(batch, heads, num_rows, dim)).float()
    # Heads that share a key head stand side by side.
    picked = picked.reshape(batch, key_heads, -1, dim)
    logits = picked @ key.float().transpose(-1, -2) * scaling
    logits = logits.reshape(batch, heads, num_rows, num_keys)
    if mask is None:
        columns = torch.arange(num_keys, device=query.device)
        logits = logits.masked_fill(columns > index + num_keys - num_queries, -torch.inf)
    else:
        mask = mask.detach().expand(batch, -1, -1, -1)
        shown = mask.gather(2, index.expand(batch, mask.shape[1], num_rows, num_keys))
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~shown, -torch.inf)
        else:
            logits = logits + shown.float()
    return logits.softmax(-1).mean(1)


@torch.no_grad()
def attention_received(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    mask: Tensor | None,
    scaling: float,
) -> Float[Tensor, "batch keys"]:
    """The mean attention that each key receives, over queries and heads, in float32."""
    total = query.new_zeros((query.shape[0], key.shape[2]), dtype=torch.float32)
    keys = key.float().transpose(-1, -2)
    for start in range(0, query.shape[2], _CHUNK):
        logits = query[:, :, start : start + _CHUNK].float() @ keys * scaling
        if mask is not None:
            part = mask.detach()[:, :, start : start + _CHUNK]
            lowest = -torch.inf
            logits = (
                logits.masked_fill(~part, lowest)
                if mask.dtype == torch.bool
                else logits + part.float()
            )
        total += logits.softmax(-1).mean(1).sum(1)
    return total / query.shape[2]
