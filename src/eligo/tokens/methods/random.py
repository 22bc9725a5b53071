"""Random tokens, drawn so that an image gives the same result in any batch.

A generator cannot do that, so the priority of a token is a hash of the seed, its position and the
signs of its first features. Only the signs, because features are rounded differently at other batch
sizes; per token, so that a flipped sign affects only that token.
"""

from typing import ClassVar, Literal

import torch

from eligo.scenes.draws import mix
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, keep_best
from eligo.tokens.reducer import Budget, ReducerContext, Where

_NUM_SIGNS = 62  # bits of a non-negative int64


class RandomTokens(Method):
    """Tokens drawn without replacement by a hash of seed, position and features."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["random"] = "random"
    seed: int = 0
    """Seed of the draw; for repetitions, not for tuning."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select by priority, uniform in [0, 1)."""
        signs = context.features[..., :_NUM_SIGNS] > 0
        bits = 1 << torch.arange(signs.shape[-1], device=signs.device)
        content = torch.where(signs, bits, 0).sum(-1)  # (images, tokens)
        key = mix(mix(content + mix(context.positions.long() + 1)) + self.seed)
        # 24 bits: all that float32 holds exactly.
        priority = ((key >> 8) & 0xFFFFFF).float() / 2**24
        return keep_best(context, priority, budget, width)

    def flops(self, *_: int) -> float:
        """Integer hashing has no products."""
        return 0.0
