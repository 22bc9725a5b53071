"""What reducers see: the vision tokens at a layer's input, their question, their attention."""

from collections.abc import Set

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hosts import Host
from eligo.tokens.inside.attention import RowRecorder, attention_of_rows, attention_received
from eligo.tokens.inside.frame import Frame, follow
from eligo.tokens.inside.layout import Layout, inverse
from eligo.tokens.inside.prompt import Prompt, question_of
from eligo.tokens.reducer import Need, Reducer, ReducerContext


class Views:
    """Contexts for the reducers of one session."""

    def __init__(self, host: Host, scene: Bool[Tensor, "images tokens"] | None) -> None:
        self.host, self.scene = host, scene

    def before(
        self, reducer: Reducer, prompt: Prompt, positions: Tensor, embeds: Tensor
    ) -> ReducerContext:
        """Tower features, and input embeddings as the question."""
        capture = self.host.capture
        assert capture is not None
        question: tuple[Tensor | None, Tensor | None] = (None, None)
        if "question" in reducer.needs:
            question = question_of(embeds, prompt.words, prompt)
        rows = capture.cls_row
        return ReducerContext(
            features=prompt.of_images(capture.features).to(embeds.device),
            mask=prompt.columns >= 0,
            positions=positions,
            grid=prompt.grid,
            question=question[0],
            question_mask=question[1],
            cls_row=None if rows is None else prompt.of_images(rows).to(embeds.device),
            scene=self.scene_of(prompt, positions),
        )

    def inside(
        self, reducer: Reducer, layer: int, frame: Frame, layout: Layout, hidden: Tensor
    ) -> ReducerContext:
        """States at a layer's input."""
        device, prompt = hidden.device, frame.prompt
        images, rows = layout.images.to(device), layout.rows.to(device)
        if list(prompt.image_rows) == list(range(layout.batch)):
            features = ops.gather(hidden, images)
        else:
            features = ops.gather(hidden[rows], images)
        question: tuple[Tensor | None, Tensor | None] = (None, None)
        if "question" in reducer.needs:
            question = question_of(hidden, self._words(frame, layout), prompt)
        row, word_rows = frame.rows.get(layer - 1), frame.word_rows.get(layer - 1)
        if row is not None:
            row = ops.gather(row.to(device)[rows], images)
        if word_rows is not None:
            word_rows = word_rows.to(device)[rows].transpose(1, 2)  # (images, keys, words)
            word_rows = ops.gather(word_rows, images).transpose(1, 2)
        positions = layout.positions.to(device)
        return ReducerContext(
            features=features,
            mask=images >= 0,
            positions=positions,
            grid=prompt.grid.to(device),
            sizes=None if layout.sizes is None else layout.sizes.to(device),
            question=question[0],
            question_mask=question[1],
            attention_row=row,
            question_rows=word_rows,
            scene=self.scene_of(prompt, positions),
        )

    def _words(self, frame: Frame, layout: Layout) -> Tensor:
        """Columns of the prompt's text in a layout: text is never dropped, but it moves."""
        if layout not in frame.words:
            words = follow(frame.prompt.words, inverse(frame.kept, frame.length), None)
            if layout.index is not None:
                index = layout.index.to(words.device)
                words = follow(words, inverse(index, frame.base.width), None)
            frame.words[layout] = words
        return frame.words[layout]

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

    def listen(self, recorder: RowRecorder, layer: int, frame: Frame, needs: Set[Need]) -> None:
        """Have the attention of `layer` leave the rows that the cut behind it ranks by."""
        attention: nn.Module = self.host.layers[layer].self_attn  # pyright: ignore

        def hear(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> None:
            recorder.listeners.pop(attention, None)
            layout = frame.seen_by(layer)
            if "attention_row" in needs:
                place = inverse(frame.kept, frame.length).gather(1, frame.prompt.last_word[:, None])
                if layout.index is not None:
                    index = layout.index.to(place.device)
                    place = inverse(index, frame.base.width).gather(1, place)
                frame.rows[layer] = attention_of_rows(query, key, mask, scaling, place)[:, 0]
            if "question_rows" in needs:
                places = self._words(frame, layout).clamp_min(0)
                frame.word_rows[layer] = attention_of_rows(query, key, mask, scaling, places)

        recorder.listeners[attention] = hear

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
