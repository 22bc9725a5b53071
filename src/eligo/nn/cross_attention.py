"""CrossAttention: multi-head attention with queries and keys of different widths, and a mask.

With dot similarity and scale 1 it equals `torch.nn.MultiheadAttention` with the same weights, but a
row without a real key gives zero (there NaN), the logits come from a `SimilarityScale`, the mask is
True where a key is real (there the opposite), and logits and softmax are float32.
"""

from typing import Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError
from eligo.nn.contexts import without_autocast
from eligo.nn.similarity_scale import SimilarityScale


class CrossAttention(nn.Module):
    """Multi-head attention: `out = W_o concat_h(softmax(logits_h) v_h) + b_o`.

    `query_dim` and `key_dim` are the input widths, `dim` the width of all heads together, `out_dim`
    the output width (default: `query_dim`). Logits come from `scale` (default: dot product, fixed
    1). `dropout` acts on the attention weights.

    >>> attention = CrossAttention(query_dim=8, key_dim=6, dim=16, num_heads=4)
    >>> attention(torch.randn(2, 5, 8), torch.randn(2, 3, 6)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        dim: int,
        num_heads: int,
        *,
        out_dim: int | None = None,
        scale: SimilarityScale | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise InputError(
                f"CrossAttention: got dim={dim} and num_heads={num_heads}; expected a width that "
                "is divisible by num_heads"
            )
        self.num_heads = num_heads
        self.dropout = dropout
        self.scale = SimilarityScale("dot") if scale is None else scale
        self.query_proj = nn.Linear(query_dim, dim, bias=qkv_bias)
        self.key_proj = nn.Linear(key_dim, dim, bias=qkv_bias)
        self.value_proj = nn.Linear(key_dim, dim, bias=qkv_bias)
        self.out_proj = nn.Linear(dim, query_dim if out_dim is None else out_dim, bias=out_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights, zero biases."""
        for linear in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @overload
    def forward(
        self,
        query: Tensor,
        context: Tensor,
        key_mask: Tensor | None = None,
        *,
        top_m: int | None = None,
        return_map: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        query: Tensor,
        context: Tensor,
        key_mask: Tensor | None = None,
        *,
        top_m: int | None = None,
        return_map: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        query: Float[Tensor, "*batch queries query_dim"],
        context: Float[Tensor, "*batch keys key_dim"],
        key_mask: Bool[Tensor, "*batch keys"] | None = None,
        *,
        top_m: int | None = None,
        return_map: bool = False,
    ) -> (
        Float[Tensor, "*batch queries out_dim"]
        | tuple[Float[Tensor, "*batch queries out_dim"], Float[Tensor, "*batch heads queries keys"]]
    ):
        """Attend to `context` where `key_mask` is True; rows without a real key give zero.

        With `top_m`, each query and head attends only to its m best keys. `return_map` adds the
        attention weights (float32, before dropout).
        """
        keys, values = self.keys_values(context, key_mask)
        output, attention_map = self.attend(
            query, keys, values, key_mask, top_m=top_m, return_map=return_map
        )
        return output if attention_map is None else (output, attention_map)

    def keys_values(
        self,
        context: Float[Tensor, "*batch keys key_dim"],
        key_mask: Bool[Tensor, "*batch keys"] | None = None,
    ) -> tuple[
        Float[Tensor, "*batch heads keys head_dim"], Float[Tensor, "*batch heads keys head_dim"]
    ]:
        """Return projected keys and values, to attend to one context several times."""
        if key_mask is not None:  # 0 * NaN in padding would be NaN
            context = context.masked_fill(~key_mask.unsqueeze(-1), 0.0)
        return self._heads(self.key_proj(context)), self._heads(self.value_proj(context))

    def attend(
        self,
        query: Float[Tensor, "*batch queries query_dim"],
        keys: Float[Tensor, "*batch heads keys head_dim"],
        values: Float[Tensor, "*batch heads keys head_dim"],
        key_mask: Bool[Tensor, "*batch keys"] | None = None,
        *,
        top_m: int | None = None,
        return_map: bool = False,
    ) -> tuple[
        Float[Tensor, "*batch queries out_dim"],
        Float[Tensor, "*batch heads queries keys"] | None,
    ]:
        """`forward` with keys and values of `keys_values`; the map is None without `return_map`."""
        num_keys = keys.shape[-2]
        if num_keys == 0:  # one masked key, so that the general case applies
            keys, values = F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))
            key_mask = torch.zeros((*query.shape[:-2], 1), dtype=torch.bool, device=query.device)
        queries = self._heads(self.query_proj(query))
        mask = sdpa_mask = has_key = None
        if key_mask is not None:
            has_key = key_mask.any(-1)[..., None, None]  # (*batch, 1, 1)
            mask = key_mask[..., None, None, :]  # (*batch, heads, queries, keys)
            sdpa_mask = mask | ~has_key[..., None]  # an empty softmax may be NaN
        attention_map = None
        with without_autocast(query.device):  # logits stay float32
            if return_map or top_m is not None:
                attention_map = self._map(queries, keys, mask, top_m)
                weights = F.dropout(attention_map, self.dropout, self.training)
                mixed = weights @ values.float()
            else:
                queries, keys = self.scale.scaled(queries, keys)
                mixed = F.scaled_dot_product_attention(
                    queries,
                    keys,
                    values.float(),
                    attn_mask=sdpa_mask,
                    dropout_p=self.dropout if self.training else 0.0,
                    scale=1.0,
                )
        mixed = mixed.to(values.dtype).transpose(-2, -3).flatten(-2)  # (*batch, queries, dim)
        output = self.out_proj(mixed)
        if has_key is not None:
            output = torch.where(has_key, output, 0.0)  # the output bias too
        if not return_map or attention_map is None:
            return output, None
        return output, attention_map[..., :num_keys]

    def _map(self, queries: Tensor, keys: Tensor, mask: Tensor | None, top_m: int | None) -> Tensor:
        logits = self.scale(queries, keys)
        if top_m is not None:
            mask = None if mask is None else mask.expand(logits.shape)
            mask = ops.top_k_mask(logits, top_m, mask)
        return ops.masked_softmax(logits, mask)

    def _heads(self, projected: Tensor) -> Tensor:
        """(*batch, tokens, dim) -> (*batch, heads, tokens, head_dim)."""
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
