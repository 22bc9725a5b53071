"""ToMe: merge the most similar tokens, round by round (Bolya et al., ICLR 2023).

The paper merges r tokens in each block of a vision transformer by the cosine of attention keys, and
adds `log(size)` to attention. Departures: towers are not changed, so all rounds act on the tower's
output, by the cosine of features; the attention bias belongs to the plan (`size_bias`); r follows
from the budget.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, Space, fold_flops, fold_into, sizes_of
from eligo.tokens.reducer import Budget, ReducerContext, Where


class ToMe(Method):
    """Repeated bipartite soft matching; every token is merged into a kept one."""

    places: ClassVar[frozenset[Where]] = frozenset({"before"})
    space: ClassVar[Space] = {"rounds": [1, 2, 4, 8, 16]}

    name: Literal["tome"] = "tome"
    rounds: int = Field(default=4, ge=1, le=64)
    """Rounds over which merging is spread evenly; more if halving in each is not enough."""

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select in raster order; the score is the final size of a token."""
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
        # Merging cannot reach a budget of 0: the last token is dropped.
        no_budget = (budget == 0).unsqueeze(-1)
        indices = origin[:, :width].masked_fill(no_budget, -1)
        destination = destination.masked_fill(no_budget, -1)
        slots = torch.where(indices < 0, num_tokens, indices)  # a spare slot takes padding
        scores = sizes.new_zeros((len(sizes), num_tokens + 1)).scatter(-1, slots, sizes[:, :width])
        return fold_into(context, indices, scores[:, :num_tokens], destination)

    def flops(self, num_tokens: int, _words: int, width: int, _: int, budget: int) -> float:
        """Count the comparisons of the two halves in every round, and the fold."""
        all_real = torch.ones((1, num_tokens), dtype=torch.bool)
        rounds = _schedule(all_real, torch.tensor([budget]), self.rounds)
        lengths = [num_tokens, *(most for _, most in rounds)][: len(rounds)]
        matching = sum(2.0 * (n - n // 2) * (n // 2) * width for n in lengths)
        return matching + fold_flops(num_tokens, width, budget)


def _schedule(mask: Tensor, budget: Tensor, rounds: int) -> list[tuple[Tensor, int]]:
    """Return, for each round, the number of tokens per row and its maximum.

    Numbers fall evenly, but at most by half per round. A row takes as many rounds as halving needs,
    at least `rounds`; with u rounds to go it has at most `budget * 2^u`.
    """
    available, num_tokens = mask.sum(-1), mask.shape[-1]
    budget = budget.clamp_min(1).minimum(available)
    limit = max(rounds, num_tokens.bit_length())
    doubled = budget.unsqueeze(-1) * 2 ** torch.arange(num_tokens.bit_length(), device=mask.device)
    row_rounds = (doubled < available.unsqueeze(-1)).sum(-1).clamp_min(rounds)
    counts, count = [], available
    for step in range(1, limit + 1):
        left = (row_rounds - step).clamp_min(0)
        even = budget + (available - budget) * left // row_rounds
        count = even.minimum(budget * 2 ** left.clamp_max(32)).maximum((count + 1) // 2)
        count = count.maximum(budget)
        counts.append(count)
    if torch.compiler.is_compiling():  # values cannot be read: all rounds, all columns
        return [(count, num_tokens) for count in counts]
    # One device sync avoids rounds without merges, and empty columns in the others.
    after = torch.stack(counts)
    merges = (after < torch.stack([available, *counts[:-1]])).any(-1)
    most = after.amax(-1) if len(available) else merges
    values = torch.stack([merges.long(), most.long()]).tolist()
    return [(count, m) for count, merging, m in zip(counts, *values, strict=True) if merging]
