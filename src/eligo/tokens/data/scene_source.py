"""Questions on fresh scenes, built on the device by indexing, without synchronisation."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from eligo import ops
from eligo.scenes.graph import Split, draw_scenes
from eligo.scenes.painter import render
from eligo.scenes.phrases import VOCABULARY, word_ids
from eligo.scenes.question_kinds import ANSWERS
from eligo.scenes.questions import draw_questions
from eligo.scenes.vlm import (
    ASSISTANT,
    BOS,
    EOS,
    FIRST_WORD,
    IMAGE,
    PAD,
    SPECIAL,
    USER,
    pixel_values,
)
from eligo.tokens.config import ScenesDataConfig
from eligo.tokens.data.examples import IGNORED
from eligo.tokens.training.batch import HostBatch, pack

_WORDS = 16  # longest question
_ANSWER = 3  # longest answer: two words and the end of text
_AHEAD = 16  # steps whose scenes are drawn together, to save kernel launches
_SPARE = 2  # extra questions per scene, as some cannot be drawn


def reads_scenes(processor: Any) -> bool:
    """Return whether a processor has the vocabulary of the scenes, so that rows can be indexed."""
    words = [*SPECIAL, *VOCABULARY]
    ids = processor.tokenizer.convert_tokens_to_ids(words)
    return ids == list(range(len(words)))


class _Drawn(NamedTuple):
    """Scenes and their questions."""

    words: Int64[Tensor, "scenes questions words"]
    answer: Int64[Tensor, "scenes questions"]
    rgb: UInt8[Tensor, "scenes 3 height width"]


class SceneSource:
    """Questions on fresh scenes, built on the device."""

    def __init__(self, config: ScenesDataConfig, num_tokens: int) -> None:
        self.config, self.num_tokens = config, num_tokens

    def batches(
        self, size: int, seed: int, start_step: int, rank: int, world_size: int, device: Any
    ) -> Iterator[HostBatch]:
        """Yield part `rank` of the batch of every step: a pure function of (seed, step)."""
        part = size // world_size
        repeats = math.gcd(part, self.config.questions_per_image)
        images = part // repeats
        origin = seed << 32
        per_step = size // repeats
        ahead = torch.arange(_AHEAD)[:, None] * per_step + rank * images + torch.arange(images)
        step = start_step
        while True:
            chunk = step - step % _AHEAD
            indices = origin + chunk * per_step + ahead[step - chunk :]
            drawn = self._draw("train", indices.flatten(), repeats, device)
            for place in range(len(indices)):
                # Float pixels of one step at a time: those of all steps would be gigabytes.
                yield self._rows(drawn, slice(place * images, (place + 1) * images))
                step += 1

    def validation(self, batch_size: int, device: Any) -> Iterator[HostBatch]:
        """Yield the first questions of the validation split, one per scene."""
        for first in range(0, self.config.validation, batch_size):
            last = min(first + batch_size, self.config.validation)
            drawn = self._draw("validation", torch.arange(first, last), 1, device)
            yield self._rows(drawn, slice(None))

    @property
    def num_examples(self) -> int:
        """Number of examples in an epoch."""
        return self.config.examples

    @property
    def num_text(self) -> int:
        """Median number of prompt tokens without vision tokens."""
        graph = draw_scenes(self.config.scenes, "validation", range(64))
        drawn = draw_questions(graph, 4, weights=self.config.weights)
        words = (drawn.words >= 0).sum(-1)[drawn.valid]
        return int(words.median()) + 3  # <s> USER: ASSISTANT:

    def _draw(self, split: Split, indices: Tensor, repeats: int, device: Any) -> "_Drawn":
        """Draw `repeats` questions on each scene; the answer of a missing one is -1."""
        graph = draw_scenes(self.config.scenes, split, indices, device)
        drawn = draw_questions(graph, repeats + _SPARE, weights=self.config.weights)
        order = (~drawn.valid).byte().argsort(dim=1, stable=True)[:, :repeats]
        words = ops.gather(drawn.words, order)[..., :_WORDS]
        return _Drawn(words, ops.gather(drawn.answer, order), render(graph).rgb)

    def _rows(self, drawn: "_Drawn", scenes: slice) -> HostBatch:
        """Build rows `<s> USER: <image>... question ASSISTANT: answer </s>`, padded on the left."""
        words, answer = (values[scenes].flatten(0, 1) for values in (drawn.words, drawn.answer))
        repeats = drawn.words.shape[1]
        device, count = words.device, len(words)
        num_words = (words >= 0).sum(-1, keepdim=True)
        has_answer = (answer >= 0)[:, None]
        answer_words = torch.where(has_answer, _answers(device)[answer.clamp(min=0)], EOS)
        num_answer_words = (answer_words != PAD).sum(-1, keepdim=True).clamp(max=_ANSWER)
        head = torch.tensor([BOS, USER] + [IMAGE] * self.num_tokens, device=device)
        text = torch.cat([words + FIRST_WORD, words.new_full((count, 1 + _ANSWER), PAD)], -1)
        end = torch.cat([words.new_full((count, 1), ASSISTANT), answer_words], -1)
        text = text.scatter(-1, num_words + torch.arange(1 + _ANSWER, device=device), end)
        row = torch.cat([head.expand(count, -1), text], -1)
        length, tail = row.shape[1], text.shape[1]

        pad = tail - (num_words + 1 + num_answer_words)
        place = torch.arange(length, device=device) - pad  # column in the row before padding
        ids = torch.where(place >= 0, row.gather(-1, place.clamp(min=0)), PAD)
        first_answer = len(head) + num_words + 1
        small = pixel_values(drawn.rgb[scenes])
        is_answer = place >= first_answer
        batch = HostBatch(
            inputs={
                "input_ids": ids,
                "attention_mask": (place >= 0).long(),
                "pixel_values": small.repeat_interleave(repeats, 0),
            },
            question_mask=(place >= 0) & ~is_answer & (ids != IMAGE),
            labels=torch.where(is_answer & has_answer, ids, IGNORED),
            after_image=place >= len(head),
            tail=tail,
            num_answer=_ANSWER,
            rows_per_image=repeats,
            head=head,
        )
        return pack(batch, PAD)


@cache
def _answers(device: torch.device) -> Int64[Tensor, "answers 3"]:
    rows = torch.full((len(ANSWERS), _ANSWER), PAD)
    for row, answer in enumerate(ANSWERS):
        ids = [index + FIRST_WORD for index in word_ids(answer)] + [EOS]
        rows[row, : len(ids)] = torch.tensor(ids)
    return rows.to(device)
