"""TokenAggregation: fold the kept patches into a few tokens, by learned weights.

Equation 4 of SEPS; the single form is LAPS. Departures, all off with `compat=True`: a policy is a
weight inside the softmax (exact zeros, exact gradients, an empty row gives 0) where the published
code adds -1e10 to the logits, which is NaN in half precision; and `CrossSparseAggrNet` omits
the last bias, which the softmax over the patches cancels.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo.patches.model.functional import weighted_softmax, wide

Policy = Float[Tensor, "batch patches"] | Bool[Tensor, "batch patches"]


class SlotWeights(nn.Sequential):
    """LayerNorm, Linear(C, h), GELU, Linear(h, S): a logit for every patch and slot.

    Published checkpoints have a bias in the last layer; with `slot_bias=False` it is dropped on
    loading.
    """

    def __init__(self, dim: int, num_slots: int, dim_ratio: float, slot_bias: bool) -> None:
        hidden = int(dim * dim_ratio)
        super().__init__(
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, num_slots, bias=slot_bias),
        )
        if not slot_bias:
            self.register_load_state_dict_pre_hook(_drop_slot_bias)

    def logits(
        self, tokens: Float[Tensor, "batch patches dim"], scale: Float[Tensor, "1 1 1"]
    ) -> Float[Tensor, "batch slots patches"]:
        """Return `scale * MLP(LayerNorm(v))`, in at least float32."""
        norm = self[0]
        assert isinstance(norm, nn.LayerNorm)
        found = self(tokens.to(norm.weight.dtype))  # (B, n, C) -> (B, n, S)
        return wide(found.transpose(1, 2)) * wide(scale)  # (B, S, n)


def _drop_slot_bias(_: nn.Module, weights: dict[str, Any], prefix: str, *__: Any) -> None:
    weights.pop(f"{prefix}3.bias", None)


class _Aggregation(nn.Module):
    """Weight nets by name, with one `scale`."""

    nets: tuple[str, ...]

    def __init__(
        self,
        dim: int = 512,
        keeped_patches: int = 64,
        dim_ratio: float = 0.2,
        *,
        slot_bias: bool = True,
        compat: bool = False,
    ) -> None:
        super().__init__()
        self.compat = compat
        for name in self.nets:
            self.add_module(name, SlotWeights(dim, keeped_patches, dim_ratio, slot_bias))
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(
        self, x: Float[Tensor, "batch patches dim"]
    ) -> tuple[Float[Tensor, "batch slots patches"], ...]:
        """Return scaled logits of the patches, one tensor per weight net."""
        return tuple(getattr(self, name).logits(x, self.scale) for name in self.nets)

    def fold(
        self,
        weights: SlotWeights,
        tokens: Float[Tensor, "batch patches dim"],
        keep_policy: Policy | None = None,
    ) -> Float[Tensor, "batch slots dim"]:
        """Return one term of equation 4: softmax over the patches, times the raw patches."""
        logits = weights.logits(tokens, self.scale)  # (B, S, n)
        if keep_policy is None:
            shares = logits.softmax(-1)  # (B, S, n), rows sum to 1
        else:
            policy = keep_policy.to(logits.dtype).unsqueeze(1)  # (B, n) -> (B, 1, n)
            if self.compat:
                shares = (logits - (1 - policy) * 1e10).softmax(-1)  # (B, S, n)
            else:
                shares = weighted_softmax(logits, policy)  # (B, S, n)
        return (shares @ wide(tokens)).to(tokens.dtype)  # (B, S, n) @ (B, n, C) -> (B, S, C)


class TokenAggregation(_Aggregation):
    """Fold n patches into S = `keeped_patches` tokens, each a learned mean of all of them.

    The first sum of equation 4 of arXiv 2511.01390:

        (4)  v^_j = sum_i W_ij v_i,   W_.j = softmax over i of (scale * MLP(LayerNorm(v_i))_j)

    Symbols: v_i patch i of n, width C; v^_j slot j of S; the MLP is C -> h -> S with h = int(C *
    `dim_ratio`); `scale` a learned number, 1 at the start. The softmax runs over the patches, so
    every slot is a mean of raw patches.

    Tensor shapes:
        x (B, n, C)
          | LayerNorm, Linear, GELU, Linear
        (B, n, S)
          | transpose, * scale, keep_policy
        logits (B, S, n)
          | softmax over n
        weights (B, S, n), rows sum to 1
          | @ x
        (B, S, C)

    `keep_policy` (B, n): 1 keeps, 0 excludes, `W_ij = d_i e^l_ij / sum_k d_k e^l_kj`; it may carry
    a straight-through gradient. `slot_bias=False` leaves out the bias that the softmax cancels.

    >>> TokenAggregation(dim=8, keeped_patches=2)(torch.randn(3, 6, 8)).shape
    torch.Size([3, 2, 8])
    """

    nets = ("weight",)
    weight: SlotWeights

    def forward(
        self, x: Float[Tensor, "batch patches dim"], keep_policy: Policy | None = None
    ) -> Float[Tensor, "batch slots dim"]:
        """S tokens per image."""
        return self.fold(self.weight, x, keep_policy)  # (B, n, C) -> (B, S, C)


class DualTokenAggregation(_Aggregation):
    """Fold the selections of the sparse and of the dense text into the same S tokens.

    Equation 4 of arXiv 2511.01390:

        (4)  v^_j = sum_i W^s_ij v^s_i + sum_i W^d_ij v^d_i

    Symbols: v^s, v^d the patches selected by the sparse and by the dense text; W^s, W^d their
    weights, each as in `TokenAggregation`, from nets of their own (`weight_sparse`,
    `weight_dense`) with one `scale` for both.

    Tensor shapes:
        tokens_sparse (B, n, C) -> weights (B, S, n) -> (B, S, C) --+
                                                                    + -> (B, S, C)
        tokens_dense  (B, m, C) -> weights (B, S, m) -> (B, S, C) --+

    Without dense tokens it is the first line alone.

    >>> dual = DualTokenAggregation(dim=8, keeped_patches=2)
    >>> dual(torch.randn(3, 6, 8), torch.randn(3, 4, 8)).shape
    torch.Size([3, 2, 8])
    """

    nets = ("weight_sparse", "weight_dense")
    weight_sparse: SlotWeights
    weight_dense: SlotWeights

    def forward(
        self,
        tokens_sparse: Float[Tensor, "batch patches dim"],
        tokens_dense: Float[Tensor, "batch dense_patches dim"] | None = None,
        mask_sparse: Policy | None = None,
        mask_dense: (
            Float[Tensor, "batch dense_patches"] | Bool[Tensor, "batch dense_patches"] | None
        ) = None,
    ) -> Float[Tensor, "batch slots dim"]:
        """S tokens per image."""
        folded = self.fold(self.weight_sparse, tokens_sparse, mask_sparse)  # (B, S, C)
        if tokens_dense is None:
            return folded
        return folded + self.fold(self.weight_dense, tokens_dense, mask_dense)  # (B, S, C)
