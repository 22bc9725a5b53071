"""What every method has to beat: keep all, draw at random.

Random must mean random, and yet a row must give the same result in any batch: a generator that
runs on through the batch cannot do that. Here a token's priority is a hash of (seed, its place in
the grid, the signs of its first features). Signs rather than all bits, so that the rounding of
another batch size does not draw anew, and token by token, so that one flipped sign moves one token.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.scenes.draws import mix
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, keep_best, keep_marked
from eligo.tokens.reducer import ReducerContext, Where

_NUM_SIGNS = 62  # as many as an int64 holds beside its sign


class KeepAll(Method):
    """No reduction. It takes no smaller budget: asking for less than all is an error."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["none"] = "none"

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """All tokens, in raster order."""
        supply = context.mask.sum(-1)
        if values_are_free(budget) and bool((budget < supply).any()):
            raise InputError(
                f"none: got budgets {budget.tolist()} for {supply.tolist()} tokens; expected a "
                "budget for all (ratio 1), since this method drops nothing"
            )
        # On a device nobody looks; the budget is exact nevertheless.
        kept = context.mask & (context.mask.long().cumsum(-1) <= budget.unsqueeze(-1))
        return keep_marked(context, kept, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Nothing is computed."""
        del num_tokens, num_words, width, question_width, budget
        return 0.0


class RandomTokens(Method):
    """Tokens drawn without replacement, by a hash of seed, place and content; see the header."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["random"] = "random"
    seed: int = 0
    """Another seed is another draw. It is for repetitions, not for tuning."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """The tokens with the highest priorities, uniform in [0, 1)."""
        signs = context.features[..., :_NUM_SIGNS] > 0
        bits = 1 << torch.arange(signs.shape[-1], device=signs.device)
        content = torch.where(signs, bits, 0).sum(-1)  # (images, tokens)
        key = mix(mix(content + mix(context.positions.long() + 1)) + self.seed)
        # 24 bits: all that float32 holds exactly.
        priority = ((key >> 8) & 0xFFFFFF).float() / 2**24
        return keep_best(context, priority, budget, width)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Hashing integers is no product."""
        del num_tokens, num_words, width, question_width, budget
        return 0.0
