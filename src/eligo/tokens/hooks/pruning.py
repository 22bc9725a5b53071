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
from eligo.tokens.hooks.frame import Frame, Step, ask, fewer, put
from eligo.tokens.hooks.layout import (
    Layout,
    arrange,
    follow,
    inverse,
    later_mask,
    prompt_mask,
    spread,
    take,
    take_rotary,
)
from eligo.tokens.hooks.session import Session
from eligo.tokens.hosts import Host
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
        padded = context.padded or len(set(budget.tolist())) > 1
        sizes = None if selection.assignment is None else selection.sizes
        features = selection.fold(context.features, padded=padded)
        return selection, features, sizes, self._bias_of(sizes)

    def _bias_of(self, sizes: Tensor | None) -> Tensor | None:
        """`log z`, if the plan wants it; padding, of size 0, weighs nothing anywhere."""
        if sizes is None or not self.plan.size_bias:
            return None
        return sizes.clamp_min(torch.finfo(sizes.dtype).tiny).log()

    def dress(
        self, layer: int, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Gather whatever is still as long as layer 0."""
        if step.prompt:
            layout, hidden = self._enter(layer, step.frame, hidden)
        else:
            layout = step.frame.seen_by(layer, step.times)
        if layout.index is None and layout.bias is None:
            return hidden, {}
        mask, tables = kwargs.get("attention_mask"), kwargs.get("position_embeddings")
        known = step.made.get(layout)
        if known is None or known[0] is not mask or known[1] is not tables:
            known = step.made[layout] = (mask, tables, self._fitted(layout, step, hidden, kwargs))
        return hidden, known[2]

    def _fitted(
        self, layout: Layout, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Mask and rotary tables for a layout."""
        mask, tables = kwargs.get("attention_mask"), kwargs.get("position_embeddings")
        flat = self.host.attention.startswith("flash")
        length = step.frame.base.width
        if step.prompt:
            mask = prompt_mask(mask, layout, length, hidden, flat=flat)
        else:
            mask = later_mask(mask, layout, length, step.later, hidden, flat=flat)
        changed: dict[str, Any] = {"attention_mask": mask}
        if layout.index is None:
            return changed
        # Flash attention would take gaps for the borders of packed sequences.
        changed["position_ids"] = None
        if self.plan.positions == "reindex":
            positions = kwargs["position_ids"]
            changed["position_embeddings"] = self._closed_up(step, layout, positions, hidden)
        elif step.prompt and tables is not None:
            changed["position_embeddings"] = take_rotary(tables, layout.index, ragged=layout.ragged)
        return changed

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
            columns = frame.trace.columns[-1] if is_same else _columns(frame, layout)
            frame.trace.columns.append(columns)
        return layout, hidden

    def _cut(
        self, layer: int, frame: Frame, hidden: Tensor
    ) -> tuple[Tensor, Selection | None, Layout]:
        """Choose; returns the columns to move, the choice if it folds, and the new layout."""
        before, reducer = frame.layouts[layer - 1], self.cuts[layer].reducer
        seats, wanted = frame.prompt.seats, self.budgets(layer, frame)
        watch = Stopwatch(hidden.device)
        context = self.views.inside(reducer, layer, frame, before, hidden.detach())
        selection = ask(reducer, context, torch.tensor(wanted))
        watch.stop()
        ragged = len(set(wanted)) > 1
        kept = follow(before.images.to(hidden.device), selection.indices, ragged=ragged)
        words = before.words.to(hidden.device)
        lengths = fewer(before.lengths, seats.rows, before.counts, wanted)
        move, _, places = arrange(words, seats.by_row(kept, -1), lengths)
        images = seats.by_image(places[:, words.shape[1] :])
        short = min(lengths) < max(lengths)
        positions = follow(context.positions, selection.indices, ragged=ragged)
        sizes, bias = context.sizes, before.bias
        if selection.assignment is not None:
            sizes = selection.sizes
            bias = self._bias_of(sizes)
            if bias is not None:
                rows = frame.prompt.rows.to(bias.device)
                bias = spread(bias, images, rows, seats.batch, max(lengths))
        else:
            sizes = None if sizes is None else selection.gather(sizes, padded=ragged)
            bias = None if bias is None else take(bias, move, ragged=short)
        layout = Layout(
            index=move if before.index is None else follow(before.index, move, ragged=short),
            images=images,
            words=places[:, : words.shape[1]],
            positions=positions,
            sizes=sizes,
            counts=wanted,
            lengths=lengths,
            bias=bias,
        )
        frame.trace.stages.append(StageTrace(layer, reducer.name, selection, positions, watch))
        return move, selection if selection.assignment is not None else None, layout

    def _fold(self, layer: int, frame: Frame, hidden: Tensor, selection: Selection) -> Tensor:
        """Vision tokens replaced by the means of what was folded into them."""
        before = frame.layouts[layer - 1]
        images, rows = before.images.to(hidden.device), frame.prompt.rows.to(hidden.device)
        folded = selection.fold(ops.gather(hidden[rows], images))
        return put(hidden, folded, follow(images, selection.indices), rows)

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


def _columns(frame: Frame, layout: Layout) -> Tensor:
    """Columns of the prompt that a layout shows."""
    if layout.index is None:
        return frame.kept
    return follow(frame.kept, layout.index.to(frame.kept.device), ragged=layout.ragged)
