"""VidCom2: what is unlike its frame and unlike the clip (Liu et al., EMNLP 2025).

On the half of the channels with the lowest variance, scaled to length 1, the likeness to a centre c
is `g(x, c) = sum_a exp(-|x - c|^2 / 2a)` with a = 1/8, 1/4, 1/2, 1, 2. A frame's weight is
`1 + p_t - 1/T` with `p = softmax(-mean g(x, clip) / temperature)` over its T frames; within a frame
the tokens with the lowest `g(x, clip) + g(x, frame)` stay. Departure: a frame's share of the
budget, in proportion to its tokens and its weight, is rounded by D'Hondt's method, which never
exceeds a frame and always sums to the budget. An image is a clip of one frame.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, keep_best
from eligo.tokens.methods.frames import frame_ids
from eligo.tokens.reducer import Budget, Features, ReducerContext, TokenIndex, Where

_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)


class VidCom2(Method):
    """A share for every frame, more for unusual ones; in a frame the least usual tokens."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    space: ClassVar[Space] = {"temperature": [0.003, 0.01, 0.03, 0.1]}

    name: Literal["vidcom2"] = "vidcom2"
    temperature: float = Field(default=0.01, gt=0, le=100)
    """Of the softmax over frames: small values favour the most unusual frame."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by D'Hondt's quotients, highest first."""
        if context.mask.shape[-1] == 0:
            return keep_best(context, context.mask.float(), budget, width)
        mask, frame = context.mask, frame_ids(context)
        # In float64, and rounded: the last digit must not decide between equals.
        units = _steady_channels(context)
        count = _sums(mask.double(), frame)  # by frame; there are at most as many as tokens
        clip = units.sum(-2) / mask.sum(-1, keepdim=True).clamp_min(1)
        centres = _sums(units, frame) / count.clamp_min(1).unsqueeze(-1)
        to_clip = _likeness(torch.einsum("itd,id->it", units, clip), clip.unsqueeze(-2))
        own = ops.gather(centres, frame)
        to_frame = _likeness(torch.einsum("itd,itd->it", units, own), own)

        is_frame = count > 0
        mean = _sums(to_clip.masked_fill(~mask, 0.0), frame) / count.clamp_min(1)
        unusual = (-mean / self.temperature).masked_fill(~is_frame, -torch.inf)
        shares = torch.where(is_frame.any(-1, keepdim=True), unusual, 0.0).softmax(-1)
        weights = 1 + shares - 1 / is_frame.double().sum(-1, keepdim=True).clamp_min(1)
        place = _places(frame, (to_clip + to_frame).float(), context)
        quotients = (weights * count).gather(-1, frame) / place
        return keep_best(context, quotients, budget, width)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count the products of each token with two centres."""
        return 4.0 * num_tokens * max(width // 2, 1)


def _steady_channels(context: ReducerContext) -> Float[Tensor, "images tokens channels"]:
    """Return unit vectors of the half of the channels that vary least; 0 in padding."""
    real = context.mask.unsqueeze(-1)
    features: Features = context.features.double().masked_fill(~real, 0.0)
    count = context.mask.sum(-1)[:, None, None].clamp_min(1)
    mean = features.sum(-2, keepdim=True) / count
    squares = (features - mean).square().masked_fill(~real, 0.0)
    variance = (squares.sum(-2) / count.squeeze(-1)).float()
    channels = ops.top_k(-variance, max(features.shape[-1] // 2, 1)).sort(-1).values
    chosen = features.gather(-1, channels.unsqueeze(-2).expand(-1, features.shape[-2], -1))
    return torch.nn.functional.normalize(chosen, dim=-1)


def _sums(values: Tensor, frame: TokenIndex) -> Tensor:
    """Return the sum of `images tokens *features` by frame."""
    index = frame.reshape(*frame.shape, *(1,) * (values.ndim - 2)).expand_as(values)
    return torch.zeros_like(values).scatter_add(1, index, values)


def _likeness(products: Tensor, centre: Tensor) -> Float[Tensor, "images tokens"]:
    """Return g of unit vectors by their products with the centre."""
    squares = (1 + centre.square().sum(-1) - 2 * products).clamp_min(0)
    return torch.stack([torch.exp(-squares / (2 * scale)) for scale in _SCALES]).sum(0)


def _places(
    frame: TokenIndex, likeness: Float[Tensor, "images tokens"], context: ReducerContext
) -> TokenIndex:
    """Return the place of each token in its frame from 1 on, the least likeness first."""
    likeness = likeness.masked_fill(~context.mask, torch.inf)
    order = likeness.argsort(dim=-1, stable=True)
    behind = frame.masked_fill(~context.mask, frame.shape[-1])  # padding is a last frame
    order = order.gather(-1, behind.gather(-1, order).argsort(dim=-1, stable=True))
    ordered = behind.gather(-1, order)
    first = torch.searchsorted(ordered, ordered)  # where each frame begins
    rank = torch.arange(frame.shape[-1], device=frame.device) - first + 1
    return torch.empty_like(order).scatter(-1, order, rank)
