"""Batches of lessons, and a lesson as one row of tokens: examples, an image, eight questions.

    <s> | USER: image text ASSISTANT: word | x 4 | USER: image | text ASSISTANT: answer </s> | x 8

The chat template is that of the scenes' LLaVA, so a prompt of the same examples, written by its
processor, has the same tokens at the same positions. A question attends to the examples, the image
and itself. Examples that are not shown, and padding, are masked and take no position.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo.scenes.vlm import ASSISTANT, BOS, EOS, FIRST_WORD, IMAGE, PAD, USER
from eligo.shots.learner.lessons import (
    EXAMPLE_WORDS,
    EXAMPLES,
    NUM_VALUES,
    QUESTION_WORDS,
    QUESTIONS,
    Lessons,
)

_FRAME = 4  # words before the names in a question: "what colour is the"
_ROW = QUESTION_WORDS + 3  # a question, ASSISTANT:, answer, </s>


class Meanings(NamedTuple):
    """Values of the two words of every question."""

    values: Int64[Tensor, "lessons 8 2"]
    known: Bool[Tensor, "lessons 8 2"]
    """Whether a clear example is shown."""


class Batch(NamedTuple):
    """Lessons of which some examples are shown."""

    lessons: Lessons
    shown: Bool[Tensor, "lessons 4"]

    @property
    def clear(self) -> Bool[Tensor, "lessons 4"]:
        """Shown examples that determine their word."""
        return self.shown & self.lessons.clear

    def decided(self) -> Bool[Tensor, "lessons 8"]:
        """Questions whose two examples are both shown and clear."""
        lessons = self.lessons
        return lessons.valid & (self.clear[:, None] | ~lessons.needs).all(-1)

    def meanings(self) -> Meanings:
        """Meanings of the questions' words; both words and values are ordered by attribute."""
        lessons = self.lessons
        used = torch.where(lessons.needs, lessons.example_value[:, None], NUM_VALUES)
        values, position = used.sort(-1)
        known = self.clear[:, None].expand_as(used).gather(2, position)[..., :2]
        return Meanings(values[..., :2], known & lessons.valid[..., None])


class Packed(NamedTuple):
    """Rows of tokens, and positions of their parts."""

    tokens: Int64[Tensor, "lessons length"]
    positions: Int64[Tensor, "lessons length"]
    mask: Bool[Tensor, "lessons 1 length length"]
    """Attention mask."""
    word_places: Int64[Tensor, "lessons 4"]
    """The examples' nonce words."""
    noun_places: Int64[Tensor, "lessons 4"]
    """The noun (or colour) in the examples' questions."""
    example_patches: Int64[Tensor, "lessons 4 patches"]
    """The examples' images."""
    question_patches: Int64[Tensor, "lessons patches"]
    """The image of the questions."""
    answer_places: Int64[Tensor, "lessons 8"]
    """ASSISTANT: of each question, which predicts the answer; the next token predicts </s>."""
    name_places: Int64[Tensor, "lessons 8 2"]
    """The two nonce words of each question."""
    answers: Int64[Tensor, "lessons 8"]
    """Token of each answer."""


def pack(lessons: Lessons, shown: Bool[Tensor, "lessons 4"], image_tokens: int) -> Packed:
    """Pack the lessons with only the examples that are shown."""
    count, device = len(lessons), shown.device
    width = 1 + image_tokens + EXAMPLE_WORDS + 2  # of an example
    prefix = 1 + EXAMPLES * width + 1 + image_tokens
    image = torch.full((count, EXAMPLES, image_tokens), IMAGE, device=device)
    ones = torch.ones(count, EXAMPLES, 1, dtype=torch.int64, device=device)
    text, word = _tokens(lessons.example_text), (lessons.example_word + FIRST_WORD)[..., None]
    shots = torch.cat([USER * ones, image, text, ASSISTANT * ones, word], 2)
    rows, length = _question_rows(lessons)
    tokens = torch.cat(
        [BOS * ones[:, 0], shots.flatten(1), USER * ones[:, 0], image[:, 0], rows.flatten(1)], 1
    )

    real = torch.ones_like(tokens[:, :prefix], dtype=torch.bool)
    real[:, 1 : 1 + EXAMPLES * width] = ((shots != PAD) & shown[..., None]).flatten(1)
    offset = torch.arange(_ROW, device=device).expand(count, QUESTIONS, -1)
    after = real.sum(1)[:, None, None] + offset
    positions = torch.cat([(real.cumsum(1) - 1).clamp_min(0), after.flatten(1)], 1)

    visible = torch.cat([real, torch.ones_like(rows, dtype=torch.bool).flatten(1)], 1)
    block = torch.arange(QUESTIONS, device=device).repeat_interleave(_ROW) + 1
    block = F.pad(block, (prefix, 0))
    order = torch.arange(len(block), device=device)
    same = (block[:, None] == block) | (block == 0)
    mask = (same & (order[:, None] >= order))[None] & visible[:, None]
    mask |= torch.eye(len(block), dtype=torch.bool, device=device)  # no row without a key

    first = prefix + torch.arange(QUESTIONS, device=device) * _ROW
    words = torch.arange(1, EXAMPLES + 1, device=device) * width
    names = first[:, None] + _FRAME + torch.arange(2, device=device)
    patches = torch.arange(image_tokens, device=device)
    example_patches = words[:, None] - (width - 2) + patches
    nouns = example_patches[:, -1] + 1 + _FRAME
    return Packed(
        tokens,
        positions,
        mask[:, None],
        words.expand(count, -1),
        nouns.expand(count, -1),
        example_patches.expand(count, -1, -1),
        (prefix - image_tokens + patches).expand(count, -1),
        first + length,
        names.expand(count, -1, -1),
        lessons.answer + FIRST_WORD,
    )


def _tokens(ids: Tensor) -> Tensor:
    return torch.where(ids >= 0, ids + FIRST_WORD, PAD)


def _question_rows(lessons: Lessons) -> tuple[Tensor, Tensor]:
    """Questions with their answers, padded on the right, and the questions' lengths."""
    rows = F.pad(_tokens(lessons.text), (0, _ROW - QUESTION_WORDS), value=PAD)
    length = (lessons.text >= 0).sum(-1)
    answer = lessons.answer + FIRST_WORD
    ends = (torch.full_like(length, ASSISTANT), answer, torch.full_like(length, EOS))
    for step, token in enumerate(ends):
        rows = rows.scatter(-1, (length + step)[..., None], token[..., None])
    return rows, length
