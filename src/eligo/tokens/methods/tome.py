"""ToMe: merge the most similar tokens, round by round (Bolya et al., ICLR 2023).

The paper merges a constant number r in each block of a vision transformer, by the cosine of
attention keys, and adds `log(size)` to attention. Departures: all rounds happen on the tower's
output, by the cosine of features, because towers are left as they are; the attention bias is the
plan's (`size_bias`), from the sizes that the assignment carries; r follows from the budget.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, fold_flops, fold_into, sizes_of
from eligo.tokens.reducer import ReducerContext, Where


class ToMe(Method):
    """Repeated bipartite soft matching; every token ends in one of those kept."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    space: ClassVar[Space] = {"rounds": [1, 2, 4, 8, 16]}

    name: Literal["tome"] = "tome"
    rounds: int = Field(default=4, ge=1, le=64)
    """Rounds over which merging is spread evenly; more where halving each time would not do."""

    def keep(
        self, context: ReducerContext, budget: Int[Tensor, " images"], width: int
    ) -> Selection:
        """What is kept, in raster order; the score is the size a token ended with."""
        num_tokens = context.mask.shape[-1]
        origin = ops.align_left(context.mask)
        tokens = ops.gather(context.features.float(), origin)
        sizes, mask = ops.gather(sizes_of(context), origin), origin >= 0
        destination = torch.where(context.mask, context.mask.long().cumsum(-1) - 1, -1)
        for num_kept, num_columns in _schedule(mask, budget, self.rounds):
            kept, moves = ops.bipartite_match(tokens, mask.sum(-1) - num_kept, mask)
            matching = ops.Matching(kept[:, : max(num_columns, width)], moves)
            tokens, sizes = ops.merge(tokens, matching, sizes)
            mask = matching.kept >= 0
            origin = torch.where(mask, ops.gather(origin, matching.kept), -1)
            destination = torch.where(destination < 0, -1, ops.gather(moves, destination))
        # A budget of 0 cannot be merged to: its last token is dropped, with all that is in it.
        no_budget = (budget == 0).unsqueeze(-1)
        indices = origin[:, :width].masked_fill(no_budget, -1)
        destination = destination.masked_fill(no_budget, -1)
        slots = torch.where(indices < 0, num_tokens, indices)  # padding falls into a spare slot
        scores = sizes.new_zeros((len(sizes), num_tokens + 1)).scatter(-1, slots, sizes[:, :width])
        return fold_into(context, indices, scores[:, :num_tokens], destination)

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Every round compares one half with the other; then the fold."""
        del num_words, question_width
        everyone = torch.ones((1, num_tokens), dtype=torch.bool)
        rounds = _schedule(everyone, torch.tensor([budget]), self.rounds)
        lengths = [num_tokens, *(most for _, most in rounds)][: len(rounds)]
        matching = sum(2.0 * (n - n // 2) * (n // 2) * width for n in lengths)
        return matching + fold_flops(num_tokens, width, budget)


def _schedule(mask: Tensor, budget: Tensor, rounds: int) -> list[tuple[Tensor, int]]:
    """After each round: how many tokens each row has, and the most that any has.

    Evenly fewer, but no fewer than half of the round before. A row takes as many rounds as halving
    needs, at least `rounds`; with u of them to go it has at most `budget * 2^u`, so as to arrive.
    """
    supply, num_tokens = mask.sum(-1), mask.shape[-1]
    budget = budget.clamp_min(1).minimum(supply)
    limit = max(rounds, num_tokens.bit_length())
    doubled = budget.unsqueeze(-1) * 2 ** torch.arange(num_tokens.bit_length(), device=mask.device)
    own = (doubled < supply.unsqueeze(-1)).sum(-1).clamp_min(rounds)
    counts, count = [], supply
    for step in range(1, limit + 1):
        left = (own - step).clamp_min(0)
        even = budget + (supply - budget) * left // own
        count = even.minimum(budget * 2 ** left.clamp_max(32)).maximum((count + 1) // 2)
        count = count.maximum(budget)
        counts.append(count)
    if torch.compiler.is_compiling():  # a graph cannot look: all rounds, all columns
        return [(count, num_tokens) for count in counts]
    # One device sync, to spare the rounds in which nobody merges, and dead columns in the others.
    after = torch.stack(counts)
    merges = (after < torch.stack([supply, *counts[:-1]])).any(-1)
    most = after.amax(-1) if len(supply) else merges
    looked = torch.stack([merges.long(), most.long()]).tolist()
    return [(count, m) for count, merging, m in zip(counts, *looked, strict=True) if merging]
