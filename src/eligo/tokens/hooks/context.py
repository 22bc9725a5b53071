"""What reducers see: the vision tokens at a layer's input, their question, their attention."""

from collections.abc import Set

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hooks.attention import attention_of_rows, attention_received, listeners
from eligo.tokens.hooks.frame import Frame
from eligo.tokens.hooks.layout import Layout, take
from eligo.tokens.hooks.prompt import Prompt, question_of
from eligo.tokens.hosts import Capture, Host
from eligo.tokens.reducer import Need, Reducer, ReducerContext


class Views:
    """Contexts for the reducers of one session."""

    def __init__(self, host: Host, scene: Bool[Tensor, "images tokens"] | None) -> None:
        self.host, self.scene = host, scene

    def before(
        self,
        reducer: Reducer,
        prompt: Prompt,
        capture: Capture,
        positions: Tensor,
        words: Tensor,
    ) -> ReducerContext:
        """Tower features, and input embeddings of the words as the question."""
        question: tuple[Tensor | None, Tensor | None] = (None, None)
        if "question" in reducer.needs:
            question = question_of(words, prompt)
        rows = capture.cls_row
        return ReducerContext(
            features=prompt.of_images(capture.features).to(words.device),
            mask=prompt.columns >= 0,
            positions=positions,
            grid=prompt.grid,
            question=question[0],
            question_mask=question[1],
            cls_row=None if rows is None else prompt.of_images(rows).to(words.device),
            scene=self.scene_of(prompt, positions),
            padded=len(set(prompt.counts)) > 1,
            question_padded=not prompt.is_all_asked,
        )

    def inside(
        self, reducer: Reducer, layer: int, frame: Frame, layout: Layout, hidden: Tensor
    ) -> ReducerContext:
        """States at a layer's input."""
        device, prompt, seats = hidden.device, frame.prompt, frame.prompt.seats
        images = layout.images.to(device)
        columns = seats.by_row(images, -1)
        ragged = layout.padded or not seats.is_even

        def seen(values: Tensor) -> Tensor:
            """`batch columns *features` -> `images tokens *features`."""
            return seats.by_image(take(values.to(device), columns, ragged=ragged))

        question: tuple[Tensor | None, Tensor | None] = (None, None)
        if "question" in reducer.needs:
            words = take(hidden, layout.words, ragged=prompt.ragged_words)
            question = question_of(words, prompt)
        row, word_rows = frame.rows.get(layer - 1), frame.word_rows.get(layer - 1)
        if row is not None:
            row = seen(row)
        if word_rows is not None:
            word_rows = seen(word_rows.transpose(1, 2)).transpose(1, 2)
        positions = layout.positions.to(device)
        return ReducerContext(
            features=seen(hidden),
            mask=images >= 0,
            positions=positions,
            grid=prompt.grid.to(device),
            sizes=None if layout.sizes is None else layout.sizes.to(device),
            question=question[0],
            question_mask=question[1],
            attention_row=row,
            question_rows=word_rows,
            scene=self.scene_of(prompt, positions),
            padded=layout.padded,
            question_padded=not prompt.is_all_asked,
        )

    def scene_of(self, prompt: Prompt, positions: Tensor) -> Bool[Tensor, "images tokens"] | None:
        """Which tokens show what decides the answer."""
        if self.scene is None:
            return None
        if max(prompt.source) >= len(self.scene) or self.scene.shape[1] < max(prompt.counts):
            raise InputError(
                f"pruning: got a scene of shape {tuple(self.scene.shape)}; expected a row per "
                f"image ({max(prompt.source) + 1}) and a column per token ({max(prompt.counts)})"
            )
        rows = self.scene[torch.tensor(prompt.source, device=self.scene.device)]
        return ops.gather(rows.to(positions.device), positions)

    def listen(self, layer: int, frame: Frame, needs: Set[Need]) -> None:
        """Have the attention of `layer` leave the rows that the cut behind it ranks by."""
        attention: nn.Module = self.host.layers[layer].self_attn  # pyright: ignore

        def hear(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> None:
            listeners().pop(attention, None)
            layout = frame.seen_by(layer)
            if "attention_row" in needs:
                last = frame.prompt.last_word.to(layout.words.device)
                place = layout.words.gather(1, last).clamp_min(0)
                frame.rows[layer] = attention_of_rows(query, key, mask, scaling, place)[:, 0]
            if "question_rows" in needs:
                places = layout.words.clamp_min(0)
                frame.word_rows[layer] = attention_of_rows(query, key, mask, scaling, places)

        listeners()[attention] = hear

    def hear_tower(self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> None:
        """Keep the row of [CLS], or the mean of all rows, for the next capture."""
        if self.host.has_cls:
            first = torch.zeros(len(query), dtype=torch.long, device=query.device)
            if mask is None:  # not causal: every query sees all keys
                shape = (1, 1, query.shape[2], key.shape[2])
                mask = torch.ones(shape, dtype=torch.bool, device=query.device)
            rows = attention_of_rows(query, key, mask, scaling, first[:, None])[:, 0, 1:]
        else:
            rows = attention_received(query, key, mask, scaling)
        self.host.tower_rows.append(rows.flatten() if self.host.mrope else rows)
