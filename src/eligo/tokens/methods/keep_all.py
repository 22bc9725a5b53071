"""No reduction: the baseline that keeps every token."""

from typing import ClassVar, Literal

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.methods.base import Method, keep_marked
from eligo.tokens.reducer import Budget, ReducerContext, Where


class KeepAll(Method):
    """Keep all tokens; a budget below the number of tokens is an error."""

    places: ClassVar[frozenset[Where]] = frozenset({"before", "inside"})

    name: Literal["none"] = "none"

    def keep(self, context: ReducerContext, budget: Budget, width: int) -> Selection:
        """Select all tokens in raster order."""
        available = context.mask.sum(-1)
        if values_are_free(budget) and bool((budget < available).any()):
            raise InputError(
                f"none: got budgets {budget.tolist()} for {available.tolist()} tokens; expected a "
                "budget for all (ratio 1), since this method drops nothing"
            )
        # On a GPU the values are not checked; the budget is exact nevertheless.
        kept = context.mask & (context.mask.long().cumsum(-1) <= budget.unsqueeze(-1))
        return keep_marked(context, kept, width)

    def flops(self, *_: int) -> float:
        """Nothing is computed."""
        return 0.0
