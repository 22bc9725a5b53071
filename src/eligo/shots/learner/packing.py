"""A lesson as one row of tokens: examples, the question's image, eight questions side by side.

    <s> | USER: image text ASSISTANT: word | x 4 | USER: image | text ASSISTANT: answer </s> | x 8

The chat template of the scenes' LLaVA, so that a prompt of the same examples, written by its
processor, is the same tokens at the same positions. A question sees examples, image and itself.
Examples that are not shown, and padding, are seen by nobody and take no position.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo.scenes.vlm import ASSISTANT, BOS, EOS, FIRST_WORD, IMAGE, PAD, USER
from eligo.shots.learner.lessons import (
    DEMO_WORDS,
    EXAMPLES,
    QUESTION_WORDS,
    QUESTIONS,
    Lessons,
)

_FRAME = 4  # words before what a question names
_ROW = QUESTION_WORDS + 3  # a question, ASSISTANT:, answer, </s>


class Packed(NamedTuple):
    """Token rows with everything that stands somewhere in them."""

    tokens: Int64[Tensor, "lessons length"]
    positions: Int64[Tensor, "lessons length"]
    mask: Bool[Tensor, "lessons 1 length length"]
    """Who may look at whom."""
    word_places: Int64[Tensor, "lessons 4"]
    """Of the examples' nonce words."""
    noun_places: Int64[Tensor, "lessons 4"]
    """Of what names the object in the examples' questions: its shape, or its colour."""
    example_patches: Int64[Tensor, "lessons 4 patches"]
    """Of the examples' images; `asked_patches`: of the questions' one."""
    asked_patches: Int64[Tensor, "lessons patches"]
    ask_places: Int64[Tensor, "lessons 8"]
    """Of ASSISTANT: in each question, which predicts the answer; the next predicts </s>."""
    name_places: Int64[Tensor, "lessons 8 2"]
    """Of the two nonce words in each question."""
    answers: Int64[Tensor, "lessons 8"]
    """Token of each answer."""


def pack(lessons: Lessons, shown: Bool[Tensor, "lessons 4"], image_tokens: int) -> Packed:
    """Rows of the lessons with only the examples that are shown."""
    count, device = len(lessons), shown.device
    width = 1 + image_tokens + DEMO_WORDS + 2  # of an example
    prefix = 1 + EXAMPLES * width + 1 + image_tokens
    picture = torch.full((count, EXAMPLES, image_tokens), IMAGE, device=device)
    one = torch.ones(count, EXAMPLES, 1, dtype=torch.int64, device=device)
    text, word = _tokens(lessons.example_text), (lessons.example_word + FIRST_WORD)[..., None]
    shots = torch.cat([USER * one, picture, text, ASSISTANT * one, word], 2)
    start, asked = BOS * one[:, 0], torch.cat([USER * one[:, 0], picture[:, 0]], 1)
    rows, length = _rows(lessons)
    tokens = torch.cat([start, shots.flatten(1), asked, rows.flatten(1)], 1)

    real = (shots != PAD) & shown[..., None]
    whole = torch.ones_like(tokens[:, :prefix], dtype=torch.bool)
    whole[:, 1 : 1 + EXAMPLES * width] = real.flatten(1)
    offset = torch.arange(_ROW, device=device).expand(count, QUESTIONS, -1)
    behind = whole.sum(1)[:, None, None] + offset
    positions = torch.cat([(whole.cumsum(1) - 1).clamp_min(0), behind.flatten(1)], 1)

    visible = torch.cat([whole, torch.ones_like(rows, dtype=torch.bool).flatten(1)], 1)
    block = torch.arange(QUESTIONS, device=device).repeat_interleave(_ROW) + 1
    block = F.pad(block, (prefix, 0))
    order = torch.arange(len(block), device=device)
    same = (block[:, None] == block) | (block == 0)
    mask = (same & (order[:, None] >= order))[None] & visible[:, None]
    mask |= torch.eye(len(block), dtype=torch.bool, device=device)  # no row without a key

    first = prefix + torch.arange(QUESTIONS, device=device) * _ROW
    example_first = 1 + torch.arange(1, EXAMPLES + 1, device=device) * width - 1
    # "what colour is the" are four words: behind them stand the two names, or an example's noun.
    names = first[:, None] + _FRAME + torch.arange(2, device=device)
    patches = torch.arange(image_tokens, device=device)
    example_patches = example_first[:, None] - (width - 2) + patches
    nouns = example_patches[:, -1] + 1 + _FRAME
    return Packed(
        tokens,
        positions,
        mask[:, None],
        example_first.expand(count, -1),
        nouns.expand(count, -1),
        example_patches.expand(count, -1, -1),
        (prefix - image_tokens + patches).expand(count, -1),
        first + length,
        names.expand(count, -1, -1),
        lessons.answer + FIRST_WORD,
    )


def _tokens(ids: Tensor) -> Tensor:
    return torch.where(ids >= 0, ids + FIRST_WORD, PAD)


def _rows(lessons: Lessons) -> tuple[Tensor, Tensor]:
    """Questions with their answers, padded on the right; and how many words the question has."""
    rows = F.pad(_tokens(lessons.text), (0, _ROW - QUESTION_WORDS), value=PAD)
    length = (lessons.text >= 0).sum(-1)
    for step, token in enumerate((ASSISTANT, lessons.answer + FIRST_WORD, EOS)):
        value = token if isinstance(token, Tensor) else torch.full_like(length, token)
        rows = rows.scatter(-1, (length + step)[..., None], value[..., None])
    return rows, length
