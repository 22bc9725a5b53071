"""`with pruning(model, plan):` removes vision tokens, also from the caches.

Hidden states, rotary tables and masks of a layer are gathered by the remaining columns; nothing is
rebuilt, so a host's own positions and masks (prefix attention, mRoPE, padding) are preserved.
Layer 0 is never cut: `generate` counts by the length of its cache.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from eligo import ops
from eligo.selection import Selection
from eligo.tokens.hooks.context import (
    ForwardPass,
    Kwargs,
    MergedTokens,
    PromptState,
    columns_of,
    run_reducer,
)
from eligo.tokens.hooks.layout import (
    Layout,
    arrange,
    inverse,
    put,
    take,
    take_index,
    take_rotary,
)
from eligo.tokens.hooks.session import PruningSession
from eligo.tokens.hosts import Host
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Budget, Reducer, ReducerContext
from eligo.tokens.trace import StageTrace, Stopwatch, Trace


@contextmanager
def pruning(
    model: nn.Module,
    plan: Plan,
    question_mask: Bool[Tensor, "batch length"] | None = None,
    *,
    scene: Bool[Tensor, "images tokens"] | None = None,
    host: Callable[[nn.Module], Host] | None = None,
    graphs: bool = False,
) -> Iterator[Trace]:
    """Inside, `model(...)` and `model.generate(...)` follow the plan; the trace shows the result.

    `question_mask`: True on the words of the prompt that reducers may read; default: everything
    except vision tokens and padding. Needed where answers follow the prompt. `scene`: for the
    oracle, the tokens that show an object which decides the answer, one row per image. `host`: an
    adapter for a model family that eligo does not support. `graphs`: on a GPU, record vision tower,
    prompt and decoding steps as CUDA graphs where possible (docs/tokens_speed.md).

    All turns of a conversation must happen inside one context. On exit the model is restored.

    >>> with pruning(model, plan) as trace:  # doctest: +SKIP
    ...     answer = model.generate(**inputs)
    >>> trace.lengths, trace.selector_ms  # doctest: +SKIP
    """
    session = TokenRemoval(model, plan, question_mask, scene, host)
    session.use_graphs = graphs
    with session:
        yield session.trace


class TokenRemoval(PruningSession):
    """A session in which cuts remove columns."""

    def merge(self, reducer: Reducer, context: ReducerContext, budget: Budget) -> MergedTokens:
        """Run the reducer and average the tokens that it merges."""
        selection = run_reducer(reducer, context, budget)
        padded = context.padded or len(set(budget.tolist())) > 1
        sizes = None if selection.assignment is None else selection.sizes
        features = selection.fold(context.features, padded=padded)
        return MergedTokens(selection, features, sizes, self._bias_of(sizes))

    def _bias_of(self, sizes: Tensor | None) -> Tensor | None:
        """Return `log z`, if the plan uses it; padding has size 0."""
        if sizes is None or not self.plan.size_bias:
            return None
        return sizes.clamp_min(torch.finfo(sizes.dtype).tiny).log()

    def adapt_inputs(
        self, layer: int, forward: ForwardPass, hidden: Tensor, kwargs: Kwargs
    ) -> tuple[Tensor, Kwargs]:
        """Gather states, mask and rotary tables by the columns of the layer."""
        if forward.is_prompt:
            layout, hidden = self._enter(layer, forward.state, hidden)
        else:
            layout = forward.state.layout_of(layer, forward.times)
        if layout.index is None and layout.bias is None and not self.host.has_windows:
            return hidden, {}
        mask, tables = kwargs.get("attention_mask"), kwargs.get("position_embeddings")
        key = (layout, self.host.windows[layer])
        cached = forward.adapted.get(key)
        if cached is None or cached[0] is not mask or cached[1] is not tables:
            adapted = self._mask_and_tables(layer, layout, forward, hidden, kwargs)
            cached = forward.adapted[key] = (mask, tables, adapted)
        return hidden, cached[2]

    def _mask_and_tables(
        self, layer: int, layout: Layout, forward: ForwardPass, hidden: Tensor, kwargs: Kwargs
    ) -> Kwargs:
        tables = kwargs.get("position_embeddings")
        mask = self.layer_mask(layer, forward, layout, hidden, kwargs)
        changed: dict[str, Any] = {"attention_mask": mask}
        if layout.index is None:
            return changed
        # Flash attention would treat gaps as borders of packed sequences.
        changed["position_ids"] = None
        if self.plan.positions == "reindex":
            positions = kwargs["position_ids"]
            changed["position_embeddings"] = self._reindexed(
                layer, forward, layout, positions, hidden
            )
        elif forward.is_prompt and tables is not None:
            changed["position_embeddings"] = take_rotary(tables, layout.index, ragged=layout.ragged)
        return changed

    def _enter(self, layer: int, state: PromptState, hidden: Tensor) -> tuple[Layout, Tensor]:
        """Return the layout of a layer and its input; a second run gives the same."""
        layout = state.layouts.get(layer)
        if layer in self.cuts:
            if layer not in state.cuts:
                state.cuts[layer] = self._cut(layer, state, hidden)
            move, selection, layout = state.cuts[layer]
            if selection is not None:
                hidden = self._fold(layer, state, hidden, selection)
            hidden = take(hidden, move, ragged=layout.ragged)
        elif layout is None:
            layout = state.layouts.get(layer - 1, state.base)
        if layer not in state.layouts:
            is_same = layer > 0 and layout is state.layouts[layer - 1]
            state.layouts[layer] = layout
            # Layers between two cuts share their columns.
            columns = state.trace.columns[-1] if is_same else columns_of(state, layout)
            state.trace.columns.append(columns)
        return layout, hidden

    def _cut(
        self, layer: int, state: PromptState, hidden: Tensor
    ) -> tuple[Tensor, Selection | None, Layout]:
        """Return the columns to gather, the selection if it merges, and the new layout."""
        before, reducer = state.layouts[layer - 1], self.cuts[layer].reducer
        row_index, counts = state.prompt.row_index, self.budgets(layer, state)
        watch = Stopwatch(hidden.device)
        context = self.contexts.for_cut(reducer, layer, state, before, hidden.detach())
        selection = run_reducer(reducer, context, torch.tensor(counts))
        watch.stop()
        ragged = len(set(counts)) > 1
        kept = take_index(before.images.to(hidden.device), selection.indices, ragged=ragged)
        words = before.words.to(hidden.device)
        lengths = row_index.reduced_lengths(before.lengths, before.counts, counts)
        move, _, places = arrange(words, row_index.by_row(kept, -1), lengths)
        images = row_index.by_image(places[:, words.shape[1] :])
        is_short = min(lengths) < max(lengths)
        positions = take_index(context.positions, selection.indices, ragged=ragged)
        sizes, bias = context.sizes, before.bias
        if selection.assignment is not None:
            sizes = selection.sizes
            bias = self._bias_of(sizes)
            if bias is not None:
                empty = bias.new_zeros((row_index.batch, max(lengths)))
                bias = put(empty, bias, images, state.prompt.rows.to(bias.device))
        else:
            sizes = None if sizes is None else selection.gather(sizes, padded=ragged)
            bias = None if bias is None else take(bias, move, ragged=is_short)
        layout = Layout(
            index=move if before.index is None else take_index(before.index, move, ragged=is_short),
            images=images,
            words=places[:, : words.shape[1]],
            positions=positions,
            sizes=sizes,
            counts=counts,
            lengths=lengths,
            bias=bias,
        )
        state.trace.stages.append(StageTrace(layer, reducer.name, selection, positions, watch))
        return move, selection if selection.assignment is not None else None, layout

    def _fold(self, layer: int, state: PromptState, hidden: Tensor, selection: Selection) -> Tensor:
        """Replace vision tokens by the means of the tokens merged into them."""
        before = state.layouts[layer - 1]
        images, rows = before.images.to(hidden.device), state.prompt.rows.to(hidden.device)
        folded = selection.fold(ops.gather(hidden[rows], images))
        return put(hidden, folded, take_index(images, selection.indices), rows)

    def _reindexed(
        self, layer: int, forward: ForwardPass, layout: Layout, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return rotary tables for positions without gaps, from the host's own module."""
        assert layout.index is not None
        real = (forward.state.kept >= 0).repeat_interleave(forward.times, 0).to(positions.device)
        index = layout.index.to(positions.device)
        dropped = (inverse(index, real.shape[1]) < 0) & real
        if forward.is_prompt:
            positions = positions - dropped.long().cumsum(-1)
            positions = positions.gather(-1, index.clamp_min(0))
        else:
            positions = positions - dropped.sum(-1, keepdim=True)
        return self.host.rotary(layer, hidden, positions)
