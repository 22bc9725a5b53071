"""Peaks: the best tokens that do not look like each other.

The best by score alone are look-alikes, because a scorer gives like tokens like scores: one object
many times, another not at all. As in density-peak clustering (Rodriguez and Laio, Science 2014), a
token is marked down if a better one looks like it. Among tokens that nothing tells apart a fixed
lattice order decides, so that plain walls are covered evenly. No part of the guide: a departure
that `diverse: false` undoes.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eligo import ops
from eligo.nn import without_autocast
from eligo.tokens.reducer import ReducerContext

_SAME = 1e-4  # of two tokens this much alike (1 - cosine), one is no news


class Peaks(nn.Module):
    """Ranks `s'_i + w log d_i`: the peaks of `e^s' d^w`.

    `s'_i = s_i + v b_i` with Bayer's order b of the grid; `d_i = 1 - max cos(x_i, x_j)` over the j
    with higher s'. v and w are learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.ones(()))
        self.diversity = nn.Parameter(torch.ones(()))

    def forward(
        self,
        context: ReducerContext,
        scores: Float[Tensor, "images tokens"],
        looks: Float[Tensor, "images tokens dim"],
    ) -> Float[Tensor, "images tokens"]:
        """What to rank by; 0 in padding."""
        columns = context.grid[:, 1:].clamp_min(1)
        order = ops.ordered_dither(context.positions // columns, context.positions % columns)
        with without_autocast(scores.device):
            units = F.normalize(looks.float(), dim=-1)
            scores = scores + self.spread * order
            mask = context.mask if context.padded else None
            distinct = ops.distinctness(scores, units @ units.mT, mask)
            ranks = scores + self.diversity * distinct.clamp_min(_SAME).log()
        return ranks.masked_fill(~context.mask, 0.0) if context.padded else ranks


def peak_flops(num_tokens: int, dim: int) -> float:
    """2 x multiply-adds of one image: all cosines."""
    return 2.0 * num_tokens * num_tokens * dim
