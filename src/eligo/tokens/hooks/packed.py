"""Results of a recorded prompt, packed so that a replay copies them with a few kernels.

A replay overwrites the memory of the one before it. Tensors of equal shape are therefore stacked as
the last step of the recording, and each stack is copied out after a replay.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eligo.errors import EligoError
from eligo.selection import Selection
from eligo.tokens.hooks.context import PromptState
from eligo.tokens.hooks.layout import Layout
from eligo.tokens.trace import StageTrace, Trace

Copy = Callable[..., Tensor]
"""Called with a tensor and whether its values are columns; returns the tensor to put there."""


class PackedTensors:
    """Copies of tensors, in the order in which these were added."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._added: dict[Any, list[Tensor]] = {}
        self._places: list[tuple[Any, int]] = []
        self._stacks: dict[Any, Tensor] = {}

    def add(self, tensor: Tensor, is_columns: bool = False) -> Tensor:
        """Add a tensor, and return it."""
        if tensor.device != self.device:
            raise EligoError(f"got a tensor on {tensor.device}, expected all on {self.device}")
        key = (tensor.shape, tensor.dtype, is_columns)
        group = self._added.setdefault(key, [])
        self._places.append((key, len(group)))
        group.append(tensor)
        return tensor

    def pack(self) -> None:
        """Stack the tensors: the last step of a recording."""
        self._stacks = {key: torch.stack(group) for key, group in self._added.items()}
        self._added = {}

    def bytes(self) -> int:
        """Return the bytes of the stacks."""
        return sum(stack.nbytes for stack in self._stacks.values())

    def copies(self, shift: int = 0) -> Iterator[Tensor]:
        """Return copies in the order of `add`, columns lowered by `shift`."""
        copied = {
            key: stack - shift if key[-1] else stack.clone() for key, stack in self._stacks.items()
        }
        return iter([copied[key][place] for key, place in self._places])


def copy_state(state: PromptState, pad: int, copy: Copy) -> PromptState:
    """Return what later steps and the trace read of a state, without its first `pad` columns.

    Those columns are padding, and so they are first in every layer. No row may be shorter than
    others, and every row has one image.
    """
    layouts: dict[Layout, Layout] = {}

    def crop(values: Tensor, is_columns: bool = False) -> Tensor:
        return copy(values, is_columns)[:, pad:]

    def layout_of(old: Layout) -> Layout:
        if old not in layouts:
            layouts[old] = replace(
                old,
                index=None if old.index is None else crop(old.index, True),
                images=copy(old.images, True),
                words=crop(old.words, True),
                positions=copy(old.positions),
                sizes=None if old.sizes is None else copy(old.sizes),
                lengths=[length - pad for length in old.lengths],
                bias=None if old.bias is None else crop(old.bias),
            )
        return layouts[old]

    def stage_of(old: StageTrace) -> StageTrace:
        chosen, weights = old.selection, old.selection.assignment
        weights = None if weights is None else copy(weights)
        selection = Selection(copy(chosen.indices), copy(chosen.scores), copy(chosen.mask), weights)
        return replace(old, selection=selection, positions=copy(old.positions))

    prompt, trace = state.prompt, state.trace
    assert trace.grid is not None
    assert trace.rows is not None
    columns: dict[Layout, Tensor] = {}  # layers between two cuts share theirs
    for layer, layout in state.layouts.items():
        if layout not in columns:
            columns[layout] = crop(trace.columns[layer], True)
    shown = Trace(grid=copy(trace.grid), rows=copy(trace.rows), num_columns=trace.num_columns - pad)
    shown.stages = [stage_of(stage) for stage in trace.stages]
    shown.columns = [columns[layout] for layout in state.layouts.values()]
    return PromptState(
        prompt=replace(
            prompt,
            input_ids=crop(prompt.input_ids),
            columns=copy(prompt.columns, True),
            words=crop(prompt.words, True),
            num_words=[count - pad for count in prompt.num_words],
            word_mask=crop(prompt.word_mask),
        ),
        kept=crop(state.kept, True),
        base=layout_of(state.base),
        counts=state.counts,
        trace=shown,
        layouts={layer: layout_of(layout) for layer, layout in state.layouts.items()},
    )
