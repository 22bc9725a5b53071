"""Where the images of a batch of prompts stand, and which of its words are the question.

Counts come from grids and from one look at the placeholders per row; everything else stays on the
device. The batch may be larger than what the tower saw: `generate` repeats rows for beams after it
has encoded the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.tokens.hosts import Capture


@dataclass(frozen=True, eq=False)
class Prompt:
    """One batch of prompts with images, before anything is dropped. Indices count its columns."""

    input_ids: Int[Tensor, "batch length"]
    vision: Bool[Tensor, "batch length"]
    """Placeholders."""
    source: Sequence[int]
    """Per image, in the order of the batch: which of the captured images it is."""
    image_rows: Sequence[int]
    """Per image: its row of the batch."""
    counts: Sequence[int]
    """Per image: its tokens."""
    grids: Sequence[tuple[int, int]]
    columns: Int[Tensor, "images tokens"]
    """Where its tokens stand; -1 pads."""
    words: Int[Tensor, "batch words"]
    """Columns of text, answers and padding included; -1 pads."""
    word_mask: Bool[Tensor, "batch words"]
    """Which of them are the question."""
    last_word: Int[Tensor, " batch"]
    """Column of the last word of the question."""
    silent: Sequence[int]
    """Rows without a word of a question."""

    @cached_property
    def rows(self) -> Int[Tensor, " images"]:
        """`image_rows` on the device."""
        return torch.tensor(self.image_rows, device=self.columns.device)

    @cached_property
    def grid(self) -> Int[Tensor, "images 2"]:
        """`grids` on the device."""
        return torch.tensor(self.grids, device=self.columns.device).reshape(-1, 2)

    def of_images(self, values: Sequence[Tensor]) -> Tensor:
        """One entry per captured image -> one row per image of the batch, zeros as padding."""
        picked = [values[index] for index in self.source]
        if len({len(value) for value in picked}) == 1:
            return torch.stack(picked)
        return torch.nn.utils.rnn.pad_sequence(picked, batch_first=True)


def read_prompt(
    input_ids: Int[Tensor, "batch length"],
    image_token_id: int,
    capture: Capture,
    attention_mask: Tensor | None,
    question_mask: Bool[Tensor, "rows asked"] | None,
    prompt_length: int,
) -> Prompt:
    """Find images and words; `prompt_length`: columns after it were generated."""
    length = input_ids.shape[1]
    order = torch.arange(length, device=input_ids.device)
    # Only of the prompt: a model may well generate the placeholder.
    vision = (input_ids == image_token_id) & (order < prompt_length)
    asked = _question(vision, attention_mask, question_mask, prompt_length)
    placeholders, num_words = torch.stack([vision.sum(-1), asked.sum(-1)]).tolist()
    silent = [row for row, count in enumerate(num_words) if count == 0]
    if silent and question_mask is not None:
        raise InputError(
            f"pruning: the question_mask leaves rows {silent} without a word; expected at least "
            "one column that is neither image nor padding"
        )
    source, image_rows = _assign(placeholders, capture.num_tokens)
    counts = [capture.num_tokens[index] for index in source]
    words = ops.align_left(~vision, length - min(placeholders))
    return Prompt(
        input_ids=input_ids,
        vision=vision,
        source=source,
        image_rows=image_rows,
        counts=counts,
        grids=[capture.grids[index] for index in source],
        columns=_columns(vision, image_rows, counts, max(placeholders)),
        words=words,
        word_mask=ops.gather(asked, words),
        last_word=torch.where(asked, order, 0).amax(-1),
        silent=silent,
    )


def _assign(placeholders: list[int], supplies: list[int]) -> tuple[list[int], list[int]]:
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


def _columns(vision: Tensor, rows: list[int], counts: list[int], most: int) -> Tensor:
    """The placeholders of each image: those of its row, behind those of earlier images there."""
    order = ops.align_left(vision, most)
    used: dict[int, int] = {}
    starts = []
    for row, count in zip(rows, counts, strict=True):
        starts.append(used.get(row, 0))
        used[row] = starts[-1] + count
    device = vision.device
    place = torch.arange(max(counts), device=device)
    start = torch.tensor(starts, device=device)[:, None]
    real = place < torch.tensor(counts, device=device)[:, None]
    place = (place + start).clamp_max(most - 1)
    return torch.where(real, order[torch.tensor(rows, device=device)[:, None], place], -1)


def _question(
    vision: Tensor,
    attention_mask: Tensor | None,
    question_mask: Tensor | None,
    prompt_length: int,
) -> Bool[Tensor, "batch length"]:
    batch, length = vision.shape
    asked = ~vision
    if attention_mask is not None:
        asked = asked & attention_mask[:, -length:].bool()
    if question_mask is None:
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
    states: Float[Tensor, "batch length width"],
    words: Int[Tensor, "batch words"],
    prompt: Prompt,
) -> tuple[Float[Tensor, "images words width"], Bool[Tensor, "images words"]]:
    """States of the question's words, one row per image."""
    if prompt.silent:
        raise InputError(
            f"pruning: rows {list(prompt.silent)} of the prompt have no text; expected a question: "
            "this plan chooses tokens by it"
        )
    picked = ops.gather(states, words.to(states.device))
    mask = prompt.word_mask.to(states.device)
    if list(prompt.image_rows) == list(range(len(picked))):  # one image per row: no copy
        return picked, mask
    rows = prompt.rows.to(states.device)
    return picked[rows], mask[rows]
