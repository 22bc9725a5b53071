"""State of a prompt between layers, and the reducer contexts that are built from it."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo import ops
from eligo.errors import EligoError, InputError
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.hooks.attention import attention_of_rows, attention_received, recorders
from eligo.tokens.hooks.cuda_graphs import select_tokens
from eligo.tokens.hooks.layout import Layout, take, take_index
from eligo.tokens.hooks.prompt import Prompt
from eligo.tokens.hosts import Capture, Host
from eligo.tokens.reducer import TOWER_ROWS, Budget, Need, Reducer, ReducerContext
from eligo.tokens.trace import Trace

Kwargs = dict[str, Any]


class MergedTokens(NamedTuple):
    """Result of stage 1."""

    selection: Selection  # in raster order
    features: Float[Tensor, "images kept width"]
    sizes: Float[Tensor, "images kept"] | None
    key_bias: Float[Tensor, "images kept"] | None


@dataclass(eq=False)
class PromptState:
    """State of one prompt; decoding steps read it too."""

    prompt: Prompt
    kept: Int[Tensor, "batch width"]  # columns that entered the language model; -1 pads
    base: Layout  # of layer 0
    counts: Sequence[Sequence[int]]  # tokens after each stage of the plan, per image
    trace: Trace
    offsets: Int[Tensor, "batch 1"] | None = None  # of the positions of later text
    # By layer: what the host adds to the vision tokens that entered the language model.
    added: Sequence[Float[Tensor, "images tokens dim"]] = ()
    layouts: dict[int, Layout] = field(default_factory=dict)  # by layer, as far as layers have run
    cuts: dict[int, Any] = field(default_factory=dict)  # result of each cut, by layer
    last_word_rows: dict[int, Tensor] = field(default_factory=dict)  # its attention, by layer
    word_rows: dict[int, Tensor] = field(default_factory=dict)  # attention of all words, by layer
    repeated: dict[tuple[Layout, int], Layout] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Columns of the prompt."""
        return self.prompt.input_ids.shape[1]

    @property
    def dropped(self) -> int:
        """Columns that stage 1 dropped."""
        return self.length - self.base.width

    def layout_of(self, layer: int, times: int = 1) -> Layout:
        """Return the layout of a layer, with each row repeated `times`."""
        layout = self.layouts.get(layer, self.base)
        if times == 1:
            return layout
        if (layout, times) not in self.repeated:
            self.repeated[layout, times] = layout.repeated(times)
        return self.repeated[layout, times]


@dataclass(eq=False)
class ForwardPass:
    """One forward pass: over the prompt, or over tokens after it."""

    state: PromptState
    is_prompt: bool
    session: Any = None  # its `PruningSession`, for layers that run in other threads
    later: int = 0  # columns after the prompt, including those of this pass
    times: int = 1  # rows per row of the prompt
    key_mask: Int[Tensor, "batch columns"] | None = None  # 1 for real columns of layer 0
    prompt_masks: Sequence[Tensor | None] = ()  # the host's own, by layer, if some have windows
    window_masks: dict[int | None, Tensor] = field(default_factory=dict)  # of later tokens
    has_grad: bool = False
    # Takes the place of the language model, with its arguments; may return None: it does not.
    replay: Callable[[Kwargs], Any] | None = None
    # The host's mask and rotary tables, and their replacements; shared by layers between cuts
    # that see equally many columns.
    adapted: dict[Any, tuple[Any, Any, Any]] = field(default_factory=dict)


def columns_of(state: PromptState, layout: Layout) -> Int[Tensor, "batch width"]:
    """Return the columns of the prompt in a layout."""
    if layout.index is None:
        return state.kept
    return take_index(state.kept, layout.index.to(state.kept.device), ragged=layout.ragged)


def run_reducer(reducer: Reducer, context: ReducerContext, budget: Budget) -> Selection:
    """Return the reducer's selection in raster order; it may be on another device."""
    device = context.features.device
    if isinstance(reducer, nn.Module):
        parameter = next(reducer.parameters(), None)
        if parameter is not None and parameter.device != device:
            tensors = context.tensors().items()
            context = replace(context, **{name: x.to(parameter.device) for name, x in tensors})
    with torch.no_grad():
        selection = select_tokens(reducer, context, budget)
    check_selection(reducer, selection, context, budget)
    return selection if selection.scores.device == device else selection.to(device)


def check_selection(
    reducer: Reducer, selection: Selection, context: ReducerContext, budget: Budget
) -> None:
    """Raise if a selection is invalid; values are checked only where that is free."""
    if selection.scores.shape != context.mask.shape:
        raise EligoError(
            f"{reducer.name}: selected from {tuple(selection.scores.shape)} candidates, expected "
            f"{tuple(context.mask.shape)}"
        )
    if not values_are_free(selection.scores, selection.indices):
        return
    if not bool((selection.scores.isfinite() | ~context.mask).all()):
        raise EligoError(
            f"{reducer.name}: got scores that are not finite; expected numbers: look for NaN in "
            "its weights or in the model's states (half precision overflows)"
        )
    if not torch.equal(selection.num_kept, budget):
        raise EligoError(
            f"{reducer.name}: kept {selection.num_kept.tolist()} tokens, expected exactly "
            f"{budget.tolist()}: all lengths follow from the budgets"
        )


class ContextBuilder:
    """Builds the contexts of all reducers of a session."""

    def __init__(self, host: Host, scene: Bool[Tensor, "images tokens"] | None) -> None:
        self.host, self.scene = host, scene

    def for_stage1(
        self, reducer: Reducer, prompt: Prompt, capture: Capture, positions: Tensor, words: Tensor
    ) -> ReducerContext:
        """Return tower features, with input embeddings of the words as the question."""
        question = prompt.question(words) if "question" in reducer.needs else (None, None)
        projected = None
        if "question" in reducer.needs:
            projected = prompt.stack(capture.projected).to(words.device)
        return ReducerContext(
            features=prompt.stack(capture.features).to(words.device),
            mask=prompt.columns >= 0,
            positions=positions,
            grid=prompt.grid,
            frames=prompt.frames,
            question=question[0],
            projected=projected,
            question_mask=question[1],
            scene=self._scene_of(prompt, positions),
            padded=len(set(prompt.counts)) > 1,
            question_padded=not prompt.is_all_question,
            **{
                need: prompt.stack(rows).to(words.device)
                for need in TOWER_ROWS
                if (rows := getattr(capture, need)) is not None
            },
        )

    def for_cut(
        self, reducer: Reducer, layer: int, state: PromptState, layout: Layout, hidden: Tensor
    ) -> ReducerContext:
        """Return the states at a layer's input."""
        device, prompt, row_index = hidden.device, state.prompt, state.prompt.row_index
        images = layout.images.to(device)
        columns = row_index.by_row(images, -1)
        ragged = layout.padded or not row_index.is_even

        def vision(values: Tensor) -> Tensor:
            """Gather vision tokens: `batch columns *features` -> `images tokens *features`."""
            return row_index.by_image(take(values.to(device), columns, ragged=ragged))

        question = (None, None)
        if "question" in reducer.needs:
            question = prompt.question(take(hidden, layout.words, ragged=prompt.ragged_words))
        row, word_rows = state.last_word_rows.get(layer - 1), state.word_rows.get(layer - 1)
        if word_rows is not None:
            word_rows = vision(word_rows.transpose(1, 2)).transpose(1, 2)
        positions = layout.positions.to(device)
        return ReducerContext(
            features=vision(hidden),
            mask=images >= 0,
            positions=positions,
            grid=prompt.grid.to(device),
            frames=None if prompt.frames is None else prompt.frames.to(device),
            sizes=None if layout.sizes is None else layout.sizes.to(device),
            question=question[0],
            question_mask=question[1],
            attention_row=None if row is None else vision(row),
            question_rows=word_rows,
            scene=self._scene_of(prompt, positions),
            padded=layout.padded,
            question_padded=not prompt.is_all_question,
        )

    def _scene_of(self, prompt: Prompt, positions: Tensor) -> Bool[Tensor, "images tokens"] | None:
        """Return which tokens show an object that decides the answer."""
        if self.scene is None:
            return None
        if max(prompt.source) >= len(self.scene) or self.scene.shape[1] < max(prompt.counts):
            raise InputError(
                f"pruning: got a scene of shape {tuple(self.scene.shape)}; expected a row per "
                f"image ({max(prompt.source) + 1}) and a column per token ({max(prompt.counts)})"
            )
        rows = self.scene[torch.tensor(prompt.source, device=self.scene.device)]
        return ops.gather(rows.to(positions.device), positions)

    def record_attention(self, layer: int, state: PromptState, needs: Set[Need]) -> None:
        """Record the attention rows of `layer` that the next cut needs."""
        attention: nn.Module = self.host.layers[layer].self_attn  # pyright: ignore

        def record(
            query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, cap: float | None
        ) -> None:
            recorders().pop(attention, None)
            words = state.layout_of(layer).words
            if "attention_row" in needs:
                place = words.gather(1, state.prompt.last_word.to(words.device)).clamp_min(0)
                rows = attention_of_rows(query, key, mask, scaling, place, cap)
                state.last_word_rows[layer] = rows[:, 0]
            if "question_rows" in needs:
                rows = attention_of_rows(query, key, mask, scaling, words.clamp_min(0), cap)
                state.word_rows[layer] = rows

        recorders()[attention] = record

    def record_tower_attention(
        self,
        needs: Sequence[Need],
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        scaling: float,
        _cap: float | None,
    ) -> None:
        """Record the attention row of [CLS], or the mean of all rows, for the next capture."""
        if self.host.has_cls:
            first = torch.zeros(len(query), dtype=torch.long, device=query.device)
            if mask is None:  # not causal: every query sees all keys
                shape = (1, 1, query.shape[2], key.shape[2])
                mask = torch.ones(shape, dtype=torch.bool, device=query.device)
            rows = attention_of_rows(query, key, mask, scaling, first[:, None])[:, 0, 1:]
        else:
            rows = attention_received(query, key, mask, scaling)
        for need in needs:
            self.host.tower_rows[need].append(rows.flatten() if self.host.mrope else rows)
