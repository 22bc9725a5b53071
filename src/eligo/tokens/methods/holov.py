"""HoloV: a share of the budget for every part of the image (Zou et al., NeurIPS 2025).

Tokens in raster order are divided into crops. In a crop, `s_i = a_i + w v_i mean(a) / mean(v)` with
the [CLS] attention a and `v_i = sum_j (S_ij - m_i)^2 / (n - 1)`, where S are cosines with 0 on the
diagonal and `m_i = sum_j S_ij / (n - 1)`. A crop gets tokens in proportion to its mean of s.
Departures: shares are rounded by D'Hondt's method, which also gives every crop at least its share
rounded down, but never exceeds a crop's tokens and always sums to the budget. In a crop the highest
s stay; the released code uses a there, so that v has no effect (mean(s) is `(1 + w) mean(a)`).
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, keep_best, row_flops, unit_features
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenMask, Where

CropValues = Float[Tensor, "images crops members"]


class HoloV(Method):
    """Tokens of all parts of the image, by attention and by variance of similarity."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    reads: ClassVar[frozenset[Need]] = frozenset({"cls_row"})
    space: ClassVar[Space] = {"crops": [4, 8, 16, 32], "variance_weight": [0.0, 0.09, 0.3, 1.0]}

    name: Literal["holov"] = "holov"
    crops: int = Field(default=16, ge=1, le=1024)
    """Parts of the image."""
    variance_weight: float = Field(default=0.09, ge=0, le=100)
    """Weight w of the variance."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by D'Hondt's quotients, highest first."""
        assert context.cls_row is not None  # checked by `select`
        members = _crops(context.mask, self.crops)
        real = members >= 0
        attention = _take(context.cls_row.float(), members).double()
        variance = _variance(_take(unit_features(context), members), real)
        mean = _mean(variance, real)
        scale = torch.where(mean > 0, _mean(attention, real) / mean, 0.0)
        scores = attention + self.variance_weight * scale.unsqueeze(-1) * variance
        # In float64 until here, and rounded: the last digit must not decide between equals.
        weights, scores = _mean(scores, real).float(), scores.float()

        order = ops.top_k(scores, scores.shape[-1], real)
        place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        quotients = (weights.unsqueeze(-1) / place).flatten(-2)
        tokens = torch.where(order < 0, -1, ops.gather(members, order)).flatten(-2)
        num_tokens = context.mask.shape[-1]
        slots = torch.where(tokens < 0, num_tokens, tokens)  # a spare slot takes padding
        ranked = quotients.new_zeros((len(slots), num_tokens + 1)).scatter(-1, slots, quotients)
        return keep_best(context, ranked[:, :num_tokens], budget, width)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count the row of [CLS] and the cosines in every crop.

        In a tower without [CLS] the row is a mean over all rows, at `num_tokens` times the cost.
        """
        members = -(-num_tokens // self.crops)
        return row_flops(num_tokens + 1, width) + 2.0 * self.crops * members**2 * width


def _crops(mask: TokenMask, crops: int) -> Int[Tensor, "images crops members"]:
    """Return the tokens of each crop: equal runs of the real tokens, up to one; -1 pads."""
    count = mask.sum(-1)[:, None, None]
    crop = torch.arange(crops, device=mask.device)[:, None]
    start, end = -(-crop * count // crops), -(-(crop + 1) * count // crops)
    most = -(-mask.shape[-1] // crops)
    rank = start + torch.arange(most, device=mask.device)
    rank = torch.where(rank < end, rank, -1)
    return torch.where(rank < 0, -1, _take(ops.align_left(mask), rank))


def _take(values: Tensor, members: Int[Tensor, "images crops members"]) -> Tensor:
    """Gather `images tokens *features` to `images crops members *features`; 0 in padding."""
    return ops.gather(values, members.flatten(1)).unflatten(1, members.shape[1:])


def _variance(units: Tensor, real: Tensor) -> CropValues:
    """Return the variance of the cosines of each token with the others of its crop."""
    pairs = real.unsqueeze(-1) & real.unsqueeze(-2)
    own = torch.eye(real.shape[-1], dtype=torch.bool, device=real.device)
    cosines = (units @ units.transpose(-1, -2)).double().masked_fill(~pairs | own, 0.0)
    others = (real.sum(-1) - 1).clamp_min(1)[..., None, None]
    mean = cosines.sum(-1, keepdim=True) / others
    squares = (cosines - mean).square().masked_fill(~pairs, 0.0)
    return (squares.sum(-1, keepdim=True) / others).squeeze(-1)


def _mean(values: CropValues, real: Tensor) -> Float[Tensor, "images crops"]:
    """Return the mean of each crop in float64; padding is 0."""
    return values.sum(-1) / real.sum(-1).clamp_min(1)
