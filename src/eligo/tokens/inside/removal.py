"""`with pruning(model, plan):` tokens are really removed, from the caches too.

Spec: "Integration with transformers 5.x". Hidden states, rotary tables and masks of a layer are
gathered by the columns that are left; nothing is rebuilt, so whatever a host does with positions
and masks (prefix attention, mRoPE, padding) survives. Layer 0 is never cut: the length of its
cache is the clock by which `generate` counts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.hosts import Host
from eligo.tokens.inside.frame import Frame, Step, ask, fewer, follow, marks, put, raster
from eligo.tokens.inside.layout import Layout, inverse, later_mask, prompt_mask, take, take_rotary
from eligo.tokens.inside.session import Session
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer, ReducerContext
from eligo.tokens.trace import StageTrace, Stopwatch, Trace


@contextmanager
def pruning(
    model: nn.Module,
    plan: Plan,
    question_mask: Bool[Tensor, "batch length"] | None = None,
    *,
    scene: Bool[Tensor, "images tokens"] | None = None,
    host: Callable[[nn.Module], Host] | None = None,
) -> Iterator[Trace]:
    """Inside, `model(...)` and `model.generate(...)` follow the plan; the trace says what was kept.

    `question_mask`: True on the words of the prompt that reducers may read; default: all that is
    neither vision token nor padding. Give it where answers follow the prompt. `scene`: for the
    oracle, which tokens show what decides the answer, one row per image. `host`: an adapter of
    one's own, for families that eligo does not know.

    Reducers get budgets as a CPU tensor, one per image (per tile, for hosts that tile). One that
    folds returns an assignment which already weighs by `context.sizes`. All turns of a
    conversation happen inside one context. On exit the model is what it was.

    >>> with pruning(model, plan) as trace:  # doctest: +SKIP
    ...     answer = model.generate(**inputs)
    >>> trace.lengths, trace.selector_ms  # doctest: +SKIP
    """
    with Removal(model, plan, question_mask, scene, host) as session:
        yield session.trace


class Removal(Session):
    """Cuts take columns away."""

    def merge(
        self, reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]
    ) -> tuple[Selection, Tensor, Tensor | None, Tensor | None]:
        """The reducer's choice, and means of what it folded."""
        selection = ask(reducer, context, budget)
        sizes = None if selection.assignment is None else selection.sizes
        return selection, selection.fold(context.features), sizes, self.bias_of(sizes)

    def bias_of(self, sizes: Tensor | None) -> Tensor | None:
        """`log z`, if the plan wants it."""
        if sizes is None or not self.plan.size_bias:
            return None
        return torch.where(sizes > 0, sizes, 1.0).log()

    def dress(
        self, layer: int, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Gather whatever is still as long as layer 0."""
        frame = step.frame
        if step.prompt:
            layout, hidden = self._enter(layer, frame, hidden)
        else:
            layout = step.once((layer, "repeated"), None, lambda: self._later(layer, step))
        if layout.index is None and layout.key_bias is None:
            return hidden, {}
        mask, tables = kwargs.get("attention_mask"), kwargs.get("position_embeddings")
        flat = self.host.attention.startswith("flash")
        length = frame.base.width

        def fit() -> Tensor | None:
            if step.prompt:
                return prompt_mask(mask, layout, length, hidden, flat=flat)
            return later_mask(mask, layout, length, step.later, hidden, flat=flat)

        changed: dict[str, Any] = {"attention_mask": step.once((layout, "mask"), mask, fit)}
        if layout.index is None:
            return hidden, changed
        # Flash attention would take gaps for the borders of packed sequences.
        changed["position_ids"] = None
        if self.plan.positions == "reindex":
            positions = kwargs["position_ids"]
            changed["position_embeddings"] = step.once(
                (layout, "rotary"), tables, lambda: self._closed_up(step, layout, positions, hidden)
            )
        elif step.prompt and tables is not None:
            index = layout.index
            changed["position_embeddings"] = step.once(
                (layout, "rotary"), tables, lambda: take_rotary(tables, index)
            )
        return hidden, changed

    def _later(self, layer: int, step: Step) -> Layout:
        return step.frame.seen_by(layer).repeated(step.times)

    def _enter(self, layer: int, frame: Frame, hidden: Tensor) -> tuple[Layout, Tensor]:
        """What this layer sees of the prompt, and its input; run again, it does the same."""
        layout = frame.layouts.get(layer)
        if layer in self.cuts:
            if layer not in frame.moves:
                frame.moves[layer] = self._cut(layer, frame, hidden)
            move, selection, layout = frame.moves[layer]
            if selection is not None:
                hidden = self._fold(layer, frame, hidden, selection)
            hidden = take(hidden, move, ragged=layout.ragged)
        elif layout is None:
            layout = frame.layouts.get(layer - 1, frame.base)
        if layer not in frame.layouts:
            is_same = layer > 0 and layout is frame.layouts[layer - 1]
            frame.layouts[layer] = layout
            # Layers between two cuts share their columns.
            columns = self.trace.columns[-1] if is_same else _columns(frame, layout)
            self.trace.columns.append(columns)
        return layout, hidden

    def _cut(
        self, layer: int, frame: Frame, hidden: Tensor
    ) -> tuple[Tensor, Selection | None, Layout]:
        """Choose; returns the columns to move, the choice if it folds, and the new layout."""
        before, reducer = frame.layouts[layer - 1], self.cuts[layer].reducer
        wanted = self.budgets(layer, frame)
        watch = Stopwatch(hidden.device)
        context = self.views.inside(reducer, layer, frame, before, hidden.detach())
        selection = ask(reducer, context, torch.tensor(wanted))
        watch.stop()
        images, rows = before.images.to(hidden.device), before.rows.to(hidden.device)
        kept = _columns_of(images, selection)
        keep = ~marks(images, rows, before.batch, before.width)
        keep = keep | marks(kept, rows, before.batch, before.width)
        if before.index is not None:
            keep = keep & (before.index.to(keep.device) >= 0)
        elif before.ragged:
            keep = keep & (frame.kept.to(keep.device) >= 0)
        lengths = fewer(before.lengths, frame.prompt.image_rows, before.counts, wanted)
        move = ops.align_right(keep, max(lengths))
        index = move
        if before.index is not None:
            index = ops.gather(before.index.to(move.device), move).masked_fill(move < 0, -1)
        folds = selection.assignment is not None
        sizes = context.sizes
        if folds:
            sizes = selection.sizes
        elif sizes is not None:
            sizes = selection.gather(sizes)
        positions = raster(context.positions, selection)
        layout = Layout(
            index=index,
            images=follow(kept, inverse(move, before.width), rows),
            positions=positions,
            sizes=sizes,
            counts=wanted,
            lengths=lengths,
            rows=rows,
            key_bias=self.bias_of(sizes),
        )
        self.trace.stages.append(StageTrace(layer, reducer.name, selection, positions, watch))
        return move, selection if folds else None, layout

    def _fold(self, layer: int, frame: Frame, hidden: Tensor, selection: Selection) -> Tensor:
        """Vision tokens replaced by the means of what was folded into them."""
        before = frame.layouts[layer - 1]
        images, rows = before.images.to(hidden.device), before.rows.to(hidden.device)
        folded = selection.fold(ops.gather(hidden[rows], images))
        return put(hidden, folded, _columns_of(images, selection), rows)

    def _closed_up(
        self, step: Step, layout: Layout, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotary tables for positions without gaps: the host's own module makes them."""
        assert layout.index is not None
        real = (step.frame.kept >= 0).repeat_interleave(step.times, 0).to(positions.device)
        index = layout.index.to(positions.device)
        gone = (inverse(index, real.shape[1]) < 0) & real
        if step.prompt:
            positions = positions - gone.long().cumsum(-1)
            positions = positions.gather(-1, index.clamp_min(0))
        else:
            positions = positions - gone.sum(-1, keepdim=True)
        return self.host.text.rotary_emb(hidden, positions)


def _columns_of(images: Tensor, selection: Selection) -> Tensor:
    """Columns of what was kept; -1 pads."""
    return ops.gather(images, selection.indices).masked_fill(selection.indices < 0, -1)


def _columns(frame: Frame, layout: Layout) -> Tensor:
    """Columns of the prompt that a layout shows."""
    if layout.index is None:
        return frame.kept
    index = layout.index.to(frame.kept.device)
    return ops.gather(frame.kept, index).masked_fill(index < 0, -1)
