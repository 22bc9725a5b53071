"""One prompt on its way through the layers, and the index arithmetic of reductions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from eligo.selection import Selection
from eligo.tokens.hooks.checks import check_selection
from eligo.tokens.hooks.cuda_graphs import choose
from eligo.tokens.hooks.layout import Layout, inverse
from eligo.tokens.hooks.prompt import Prompt
from eligo.tokens.reducer import Reducer, ReducerContext
from eligo.tokens.trace import Trace


@dataclass(eq=False)
class Frame:
    """One prompt on its way through the layers, and what later tokens must know of it."""

    prompt: Prompt
    kept: Int[Tensor, "batch width"]
    """Columns of the prompt that entered the language model; -1 pads."""
    base: Layout
    """What layer 0 sees."""
    counts: Sequence[Sequence[int]]
    """Per image: tokens after each stage of the plan."""
    trace: Trace
    """What was kept of it."""
    offsets: Int[Tensor, "batch 1"] | None = None
    """Of the positions of later text, where a host has some."""
    layouts: dict[int, Layout] = field(default_factory=dict)
    """Per layer, as far as the prompt has come."""
    moves: dict[int, Any] = field(default_factory=dict)
    """Per cut: what it did."""
    rows: dict[int, Tensor] = field(default_factory=dict)
    """Attention of the last word, per layer."""
    word_rows: dict[int, Tensor] = field(default_factory=dict)
    """Attention of all words, per layer."""
    repeats: dict[tuple[Layout, int], Layout] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Columns of the prompt."""
        return self.prompt.input_ids.shape[1]

    def seen_by(self, layer: int, times: int = 1) -> Layout:
        """How the columns of a layer are laid out, where each row has become `times` rows."""
        layout = self.layouts.get(layer, self.base)
        if times == 1:
            return layout
        if (layout, times) not in self.repeats:
            self.repeats[layout, times] = layout.repeated(times)
        return self.repeats[layout, times]

    @property
    def dropped(self) -> int:
        """Columns that stage 1 took away."""
        return self.length - self.base.width


@dataclass(eq=False)
class Step:
    """One forward pass: the prompt itself, or tokens after it."""

    frame: Frame
    prompt: bool
    session: Any = None
    """The context that it belongs to: it travels with the call, whatever thread runs a layer."""
    later: int = 0
    """Columns after the prompt, those of this pass included."""
    times: int = 1
    """How many rows each row of the prompt has become."""
    has_grad: bool = False
    made: dict[Any, tuple[Any, Any, Any]] = field(default_factory=dict)
    """What layers between two cuts share: the host's mask and tables, and what they became."""


def ask(reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
    """A reducer's choice, in raster order; a learned one may live on another device."""
    home = context.features.device
    if isinstance(reducer, nn.Module):
        parameter = next(reducer.parameters(), None)
        if parameter is not None and parameter.device != home:
            moved = {
                name: value.to(parameter.device)
                for name, value in vars(context).items()
                if isinstance(value, Tensor)
            }
            context = replace(context, **moved)
    with torch.no_grad():
        selection = choose(reducer, context, budget)
    check_selection(reducer, selection, context, budget)
    return selection if selection.scores.device == home else selection.to(home)


def put(embeds: Tensor, vision: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Vision features at their columns."""
    length = embeds.shape[1]
    slots = columns % (length + 1)
    spare = torch.nn.functional.pad(embeds, (0, 0, 0, 1))  # a column that takes the padding
    return spare.index_put((rows[:, None].expand(slots.shape), slots), vision)[:, :length]


def fewer(
    lengths: Sequence[int], rows: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[int]:
    """Lengths of the batch's rows when their images have fewer tokens."""
    lengths = list(lengths)
    for row, had, has in zip(rows, before, after, strict=True):
        lengths[row] -= had - has
    return lengths


def dropped_before(kept: Tensor, length: int) -> Tensor:
    """Per column: how many before it are gone."""
    return (inverse(kept, length) < 0).long().cumsum(-1)


def num_dropped(kept: Tensor, length: int) -> Tensor:
    """Per row: how many columns are gone."""
    return length - (kept >= 0).sum(-1, keepdim=True)
