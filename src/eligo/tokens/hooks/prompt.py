"""Positions of images and question words in a batch of prompts.

Counts come from the grids and from one device sync before the tower runs; everything else stays on
the device. The batch may be larger than the tower's: `generate` repeats rows for beams after it has
encoded the images.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hosts import Capture


@dataclass(frozen=True)
class RowIndex:
    """The batch row of each image, known without a device sync.

    Vision tokens are indexed by image, columns by row of the batch. If all rows have equally many
    images, converting between the two is a view.
    """

    rows: Sequence[int]  # row of each image, ascending
    batch: int

    @cached_property
    def per_row(self) -> list[list[int]]:
        """Images of each row."""
        images: list[list[int]] = [[] for _ in range(self.batch)]
        for image, row in enumerate(self.rows):
            images[row].append(image)
        return images

    @cached_property
    def most(self) -> int:
        """Largest number of images in a row."""
        return max(map(len, self.per_row))

    @cached_property
    def is_even(self) -> bool:
        """Whether all rows have equally many images."""
        return len(self.rows) == self.batch * self.most

    def by_row(
        self, values: Shaped[Tensor, "images tokens *features"], fill: int = 0
    ) -> Shaped[Tensor, "batch most_tokens *features"]:
        """Concatenate the images of each row; `fill` pads rows with fewer images."""
        if self.is_even:
            return values.reshape(self.batch, -1, *values.shape[2:])
        empty = values.new_full((1, *values.shape[1:]), fill)
        last = len(self.rows)
        slots = [images + [last] * (self.most - len(images)) for images in self.per_row]
        return torch.cat([values, empty])[upload(slots, values.device)].flatten(1, 2)

    def by_image(
        self, values: Shaped[Tensor, "batch most_tokens *features"]
    ) -> Shaped[Tensor, "images tokens *features"]:
        """Invert `by_row`."""
        if self.is_even:
            return values.reshape(len(self.rows), -1, *values.shape[2:])
        places = [place for images in self.per_row for place in range(len(images))]
        rows, places = upload([self.rows, places], values.device)
        return values.unflatten(1, (self.most, -1))[rows, places]

    def reduced_lengths(
        self, lengths: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> list[int]:
        """Return the lengths of rows whose images go from `before` to `after` tokens."""
        lengths = list(lengths)
        for row, old, new in zip(self.rows, before, after, strict=True):
            lengths[row] -= old - new
        return lengths


_thread = threading.local()


def upload(values: Sequence[object], device: torch.device) -> Int[Tensor, "..."]:
    """Copy numbers to a device without waiting for it.

    The memory is pageable, so it is staged before the call returns and may be freed after it.
    """
    known: dict[Any, Tensor] | None = getattr(_thread, "known", None)
    if known is None:
        return torch.tensor(values).to(device, non_blocking=True)
    key = (repr(values), device)
    if key not in known:
        known[key] = torch.tensor(values).to(device)
    return known[key]


@contextmanager
def constants(known: dict[Any, Tensor]) -> Iterator[None]:
    """Inside, numbers are uploaded once: a CUDA graph cannot, so its warm-up does."""
    _thread.known = known
    try:
        yield
    finally:
        _thread.known = None


@dataclass(frozen=True, eq=False)
class PromptScan:
    """Placeholders and question words of a batch of prompts."""

    input_ids: Int[Tensor, "batch length"]
    vision: Bool[Tensor, "batch length"]  # placeholders
    question: Bool[Tensor, "batch length"]  # words of the question
    num_vision: Sequence[int]  # per row
    num_question: Sequence[int]  # per row
    is_whole: bool  # there is no padding
    ends_real: bool  # no row has padding on the right


@dataclass(frozen=True, eq=False)
class Prompt:
    """A batch of prompts with images, before anything is dropped; indices count its columns."""

    input_ids: Int[Tensor, "batch length"]
    source: Sequence[int]  # captured image that each image of the batch is
    row_index: RowIndex
    counts: Sequence[int]  # tokens per image
    grids: Sequence[tuple[int, int]]
    num_frames: Sequence[int] | None  # per video; None: images
    columns: Int[Tensor, "images tokens"]  # of the vision tokens; -1 pads
    words: Int[Tensor, "batch words"]  # columns of text, also answers and padding; -1 pads
    num_words: Sequence[int]  # per row
    word_mask: Bool[Tensor, "batch words"]  # True for words of the question
    is_all_question: bool  # all words of all rows belong to the question
    empty_rows: Sequence[int]  # rows without a question

    @cached_property
    def rows(self) -> Int[Tensor, " images"]:
        """Row of each image, on the device."""
        return upload(self.row_index.rows, self.columns.device)

    @cached_property
    def grid(self) -> Int[Tensor, "images 2"]:
        """`grids` on the device."""
        return upload(self.grids, self.columns.device).reshape(-1, 2)

    @cached_property
    def frames(self) -> Int[Tensor, " images"] | None:
        """`num_frames` on the device."""
        return None if self.num_frames is None else upload(self.num_frames, self.columns.device)

    @cached_property
    def last_word(self) -> Int[Tensor, "batch 1"]:
        """Index of the last word of the question in `words`."""
        place = torch.arange(self.words.shape[1], device=self.words.device)
        return torch.where(self.word_mask, place, 0).amax(-1, keepdim=True)

    @property
    def ragged_words(self) -> bool:
        """Whether some row has fewer words than others."""
        return min(self.num_words) < self.words.shape[1]

    def stack(self, values: Sequence[Tensor]) -> Tensor:
        """Stack one entry per captured image to one row per image of the batch, zero-padded."""
        picked = [values[index] for index in self.source]
        if len({len(value) for value in picked}) == 1:
            return torch.stack(picked)
        return torch.nn.utils.rnn.pad_sequence(picked, batch_first=True)

    def question(
        self, words: Float[Tensor, "batch words width"]
    ) -> tuple[Float[Tensor, "images words width"], Bool[Tensor, "images words"]]:
        """Return states of the words and the mask of the question, one row per image."""
        if self.empty_rows:
            raise InputError(
                f"pruning: rows {list(self.empty_rows)} of the prompt have no text; expected a "
                "question: this plan selects tokens by it"
            )
        mask = self.word_mask.to(words.device)
        if list(self.row_index.rows) == list(range(len(words))):  # one image per row: no copy
            return words, mask
        rows = self.rows.to(words.device)
        return words[rows], mask[rows]


def scan_prompt(
    input_ids: Int[Tensor, "batch length"],
    vision_token_id: int,
    attention_mask: Tensor | None,
    question_mask: Bool[Tensor, "rows columns"] | None,
    prompt_length: int,
) -> PromptScan:
    """Find placeholders and words (one device sync); columns from `prompt_length` are generated."""
    length = input_ids.shape[1]
    vision = input_ids == vision_token_id
    if prompt_length < length:  # a model may generate the placeholder
        vision = vision & (torch.arange(length, device=input_ids.device) < prompt_length)
    real = torch.ones_like(vision) if attention_mask is None else attention_mask[:, -length:].bool()
    question = _question(vision, real, question_mask, prompt_length)
    numbers = torch.stack([vision.sum(-1), question.sum(-1), real.sum(-1), real[:, -1].long()])
    num_vision, num_question, num_real, ends = numbers.tolist()
    if question_mask is not None and 0 in num_question:
        empty = [row for row, count in enumerate(num_question) if count == 0]
        raise InputError(
            f"pruning: the question_mask leaves rows {empty} without a word; expected at least "
            "one column that is neither image nor padding"
        )
    is_whole = min(num_real) == length
    return PromptScan(input_ids, vision, question, num_vision, num_question, is_whole, all(ends))


def _question(
    vision: Tensor, real: Tensor, question_mask: Tensor | None, prompt_length: int
) -> Bool[Tensor, "batch length"]:
    batch, length = vision.shape
    words = real & ~vision
    if question_mask is None:
        if prompt_length == length:
            return words
        return words & (torch.arange(length, device=vision.device) < prompt_length)
    rows, columns = question_mask.shape
    if columns != prompt_length or batch % rows:
        raise InputError(
            f"pruning: got a question_mask of shape {(rows, columns)} for a prompt of shape "
            f"{(batch, prompt_length)}; expected the same shape: True on the question's words"
        )
    question_mask = question_mask.to(vision.device).repeat_interleave(batch // rows, 0)
    return words & torch.nn.functional.pad(question_mask, (0, length - columns))


def locate_images(scan: PromptScan, capture: Capture) -> Prompt:
    """Match the captured images to the placeholders of a batch."""
    batch, length = scan.vision.shape
    num_tokens = capture.num_tokens
    source, rows = _assign(scan.num_vision, num_tokens)
    counts = [num_tokens[index] for index in source]
    num_words = [length - count for count in scan.num_vision]
    most = max(num_words)
    order = scan.vision.byte().argsort(dim=-1, stable=True)  # words, then placeholders
    words = order[:, :most]
    if min(num_words) < most:
        limit = upload(num_words, order.device)[:, None]
        words = torch.where(torch.arange(most, device=order.device) < limit, words, -1)
    return Prompt(
        input_ids=scan.input_ids,
        source=source,
        row_index=RowIndex(rows, batch),
        counts=counts,
        grids=[capture.grids[index] for index in source],
        num_frames=None if capture.frames is None else [capture.frames[index] for index in source],
        columns=_columns(order, num_words, rows, counts),
        words=words,
        num_words=num_words,
        word_mask=ops.gather(scan.question, words, padded=min(num_words) < most),
        is_all_question=min(scan.num_question) == most,
        empty_rows=[row for row, count in enumerate(scan.num_question) if count == 0],
    )


def _assign(num_vision: Sequence[int], num_tokens: list[int]) -> tuple[list[int], list[int]]:
    """Return the captured image and the row of each image of the batch; beams repeat images."""
    total, captured = sum(num_vision), sum(num_tokens)
    if total == 0:
        raise InputError(
            "pruning: got an image and a prompt without image tokens, expected one per vision "
            "token; let the processor write the prompt"
        )
    beams = total // captured if captured and total % captured == 0 else 0
    mismatch = InputError(
        f"pruning: got {num_vision} image tokens per row for images of {num_tokens} vision tokens; "
        "expected as many: let the processor write the prompt (chunked prefill is not supported)"
    )
    if beams == 0 or len(num_vision) % beams:
        raise mismatch
    source: list[int] = []
    rows: list[int] = []
    first = image = 0
    for sample in range(0, len(num_vision), beams):
        for row in range(sample, sample + beams):
            image, left = first, num_vision[row]
            while left > 0 and image < len(num_tokens):
                left -= num_tokens[image]
                source.append(image)
                rows.append(row)
                image += 1
            if left:
                raise mismatch
        first = image
    if first != len(num_tokens):
        raise mismatch
    return source, rows


def _columns(order: Tensor, num_words: list[int], rows: list[int], counts: list[int]) -> Tensor:
    """Return the placeholders of each image, after those of earlier images of its row."""
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
