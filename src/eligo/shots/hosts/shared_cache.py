"""A cache of beginnings that several rows share: read once, kept once, never grown."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class _SharedLayer(DynamicLayer):
    """Keys and values of the beginnings; `index` says which one each row continues."""

    def __init__(self, filled: Any, index: Int64[Tensor, " rows"]) -> None:
        super().__init__()
        self.dtype, self.device = filled.keys.dtype, filled.keys.device
        self.keys, self.values = self.kept = (filled.keys, filled.values)
        self.index = index
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "rows heads new dim"],
        value_states: Float[Tensor, "rows heads new dim"],
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of whole rows; only those of one layer are ever in memory."""
        keys, values = (part[self.index] for part in self.kept)
        return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)


def shared(filled: Any, index: Int64[Tensor, " rows"]) -> DynamicCache:
    """Return a cache for rows that continue the beginnings (by `index`) of a filled one."""
    cache = DynamicCache()
    cache.layers.extend(_SharedLayer(layer, index) for layer in filled.layers)
    return cache
