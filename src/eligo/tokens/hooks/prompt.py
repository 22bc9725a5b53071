"""Where the images of a batch of prompts stand, and which of its words are the question.

Counts come from grids and from one look at the prompt, before the tower runs, when there is nothing
to wait for; everything else stays on the device. The batch may be larger than what the tower saw:
`generate` repeats rows for beams after it has encoded the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hooks.row_index import Seats, upload
from eligo.tokens.hosts import Capture


@dataclass(frozen=True, eq=False)
class Reading:
    """What one look at a batch of prompts tells."""

    input_ids: Int[Tensor, "batch length"]
    vision: Bool[Tensor, "batch length"]
    """Placeholders."""
    asked: Bool[Tensor, "batch length"]
    """Words of the question."""
    placeholders: Sequence[int]
    """Per row."""
    num_asked: Sequence[int]
    """Per row."""
    is_whole: bool
    """Whether nothing is padding."""
    ends_real: bool
    """Whether no row has padding on the right."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """One batch of prompts with images, before anything is dropped. Indices count its columns."""

    input_ids: Int[Tensor, "batch length"]
    source: Sequence[int]
    """Per image, in the order of the batch: which of the captured images it is."""
    seats: Seats
    """Per image: its row of the batch."""
    counts: Sequence[int]
    """Per image: its tokens."""
    grids: Sequence[tuple[int, int]]
    columns: Int[Tensor, "images tokens"]
    """Where its tokens stand; -1 pads."""
    words: Int[Tensor, "batch words"]
    """Columns of text, answers and padding included; -1 pads."""
    num_words: Sequence[int]
    """Per row."""
    word_mask: Bool[Tensor, "batch words"]
    """Which of them are the question."""
    is_all_asked: bool
    """Whether all of them are, in every row."""
    silent: Sequence[int]
    """Rows without a word of a question."""

    @cached_property
    def rows(self) -> Int[Tensor, " images"]:
        """Row of each image, on the device."""
        return upload(self.seats.rows, self.columns.device)

    @cached_property
    def grid(self) -> Int[Tensor, "images 2"]:
        """`grids` on the device."""
        return upload(self.grids, self.columns.device).reshape(-1, 2)

    @cached_property
    def last_word(self) -> Int[Tensor, "batch 1"]:
        """Which of `words` is the last of the question."""
        place = torch.arange(self.words.shape[1], device=self.words.device)
        return torch.where(self.word_mask, place, 0).amax(-1, keepdim=True)

    @property
    def ragged_words(self) -> bool:
        """Whether some row has fewer words than others."""
        return min(self.num_words) < self.words.shape[1]

    def of_images(self, values: Sequence[Tensor]) -> Tensor:
        """One entry per captured image -> one row per image of the batch, zeros as padding."""
        picked = [values[index] for index in self.source]
        if len({len(value) for value in picked}) == 1:
            return torch.stack(picked)
        return torch.nn.utils.rnn.pad_sequence(picked, batch_first=True)


def look_at(
    input_ids: Int[Tensor, "batch length"],
    image_token_id: int,
    attention_mask: Tensor | None,
    question_mask: Bool[Tensor, "rows asked"] | None,
    prompt_length: int,
) -> Reading:
    """Find images and words; `prompt_length`: columns after it were generated. Waits once."""
    length = input_ids.shape[1]
    vision = input_ids == image_token_id
    if prompt_length < length:  # a model may well generate the placeholder
        vision = vision & (torch.arange(length, device=input_ids.device) < prompt_length)
    real = torch.ones_like(vision) if attention_mask is None else attention_mask[:, -length:].bool()
    asked = _question(vision, real, question_mask, prompt_length)
    numbers = torch.stack([vision.sum(-1), asked.sum(-1), real.sum(-1), real[:, -1].long()])
    placeholders, num_asked, num_real, ends = numbers.tolist()
    silent = [row for row, count in enumerate(num_asked) if count == 0]
    if silent and question_mask is not None:
        raise InputError(
            f"pruning: the question_mask leaves rows {silent} without a word; expected at least "
            "one column that is neither image nor padding"
        )
    return Reading(
        input_ids=input_ids,
        vision=vision,
        asked=asked,
        placeholders=placeholders,
        num_asked=num_asked,
        is_whole=min(num_real) == length,
        ends_real=all(ends),
    )


def place(reading: Reading, capture: Capture) -> Prompt:
    """Which image stands where."""
    placeholders, num_asked = reading.placeholders, reading.num_asked
    batch, length = reading.vision.shape
    source, rows = _assign(placeholders, capture.num_tokens)
    counts = [capture.num_tokens[index] for index in source]
    num_words = [length - count for count in placeholders]
    most = max(num_words)
    order = reading.vision.byte().argsort(dim=-1, stable=True)  # words, then placeholders
    words = order[:, :most]
    if min(num_words) < most:
        limit = upload(num_words, order.device)[:, None]
        words = torch.where(torch.arange(most, device=order.device) < limit, words, -1)
    return Prompt(
        input_ids=reading.input_ids,
        source=source,
        seats=Seats(rows, batch),
        counts=counts,
        grids=[capture.grids[index] for index in source],
        columns=_columns(order, num_words, rows, counts),
        words=words,
        num_words=num_words,
        word_mask=ops.gather(reading.asked, words, padded=min(num_words) < most),
        is_all_asked=min(num_asked) == most,
        silent=[row for row, count in enumerate(num_asked) if count == 0],
    )


def _assign(placeholders: Sequence[int], supplies: list[int]) -> tuple[list[int], list[int]]:
    """Images in the order of the rows that have room for them."""
    total, supply = sum(placeholders), sum(supplies)
    if total == 0:
        raise InputError(
            "pruning: got a prompt without image tokens, expected one per vision token; let the "
            "processor write the prompt, and run text alone outside of pruning"
        )
    beams = total // supply if supply and total % supply == 0 else 0
    mismatch = InputError(
        f"pruning: got {placeholders} image tokens per row for images of {supplies} vision tokens; "
        "expected as many: let the processor write the prompt (chunked prefill is not supported)"
    )
    if beams == 0 or len(placeholders) % beams:
        raise mismatch
    source: list[int] = []
    rows: list[int] = []
    first = image = 0
    for sample in range(0, len(placeholders), beams):
        for row in range(sample, sample + beams):
            image, room = first, placeholders[row]
            while room > 0 and image < len(supplies):
                room -= supplies[image]
                source.append(image)
                rows.append(row)
                image += 1
            if room:
                raise mismatch
        first = image
    if first != len(supplies):
        raise mismatch
    return source, rows


def _columns(order: Tensor, num_words: list[int], rows: list[int], counts: list[int]) -> Tensor:
    """The placeholders of each image: those of its row, behind those of earlier images there."""
    batch = len(order)
    if len(set(num_words)) == 1 and rows == list(range(batch)):  # one image per row: a view
        return order[:, num_words[0] :]
    used = list(num_words)
    starts = []
    for row, count in zip(rows, counts, strict=True):
        starts.append(used[row])
        used[row] += count
    place = torch.arange(max(counts))
    real = place < torch.tensor(counts)[:, None]
    place = torch.where(real, place + torch.tensor(starts)[:, None], -1)
    place = place.to(order.device, non_blocking=True)
    return ops.gather(order[upload(rows, order.device)], place).masked_fill(place < 0, -1)


def _question(
    vision: Tensor, real: Tensor, question_mask: Tensor | None, prompt_length: int
) -> Bool[Tensor, "batch length"]:
    batch, length = vision.shape
    asked = real & ~vision
    if question_mask is None:
        if prompt_length == length:
            return asked
        return asked & (torch.arange(length, device=vision.device) < prompt_length)
    rows, columns = question_mask.shape
    if columns != prompt_length or batch % rows:
        raise InputError(
            f"pruning: got a question_mask of shape {(rows, columns)} for a prompt of shape "
            f"{(batch, prompt_length)}; expected the same shape: True on the question's words"
        )
    question_mask = question_mask.to(vision.device).repeat_interleave(batch // rows, 0)
    question_mask = torch.nn.functional.pad(question_mask, (0, length - columns))
    return asked & question_mask


def question_of(
    words: Float[Tensor, "batch words width"], prompt: Prompt
) -> tuple[Float[Tensor, "images words width"], Bool[Tensor, "images words"]]:
    """States of the prompt's words -> one row per image, and which of them are the question."""
    if prompt.silent:
        raise InputError(
            f"pruning: rows {list(prompt.silent)} of the prompt have no text; expected a question: "
            "this plan chooses tokens by it"
        )
    mask = prompt.word_mask.to(words.device)
    if list(prompt.seats.rows) == list(range(len(words))):  # one image per row: no copy
        return words, mask
    rows = prompt.rows.to(words.device)
    return words[rows], mask[rows]
