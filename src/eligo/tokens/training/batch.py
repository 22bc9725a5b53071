"""Batches of a training step.

Every row is one image and one question, so that tokens are selected for each question. Rows are
padded on the left and end with the answer, as in `data.Collator`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from eligo.tokens.data.examples import IGNORED, TokenBatch


@dataclass(frozen=True)
class Packed:
    """All rows of an image after that image; each row attends to the image and to itself.

    For the unpruned model this is equivalent to separate rows, and cheaper.
    """

    inputs: dict[str, Tensor]
    num_rows: int
    """Rows of each image."""
    starts: Int64[Tensor, " rows"]
    """First of the last columns of each row."""
    columns: Int64[Tensor, " columns"]
    """Columns that predict the answers, row after row."""


@dataclass(frozen=True)
class HostBatch:
    """Inputs of a host, with labels and masks."""

    inputs: dict[str, Tensor]
    question_mask: Bool[Tensor, "batch length"]
    """Text of the prompt without the answer."""
    labels: Int64[Tensor, "batch length"]
    """Answer and end of text in the last columns, -100 elsewhere."""
    after_image: Bool[Tensor, "batch length"]
    """Text after the last vision token, which depends on the image."""
    tail: int
    """Number of last columns that hold all such text."""
    num_answer: int
    """Tokens of the longest answer, including the end of text."""
    rows_per_image: int = 1
    """Consecutive rows with the same image."""
    head: Int64[Tensor, " prefix"] | None = None
    """Tokens up to the end of the image, if they are the same in all rows."""
    packed: Packed | None = None
    """The same rows for the unpruned model."""

    def each(self, change: Callable[[Tensor], Tensor]) -> "HostBatch":
        """Change the tensors of a batch that is not packed yet."""
        assert self.packed is None
        return replace(
            self,
            inputs={name: change(value) for name, value in self.inputs.items()},
            question_mask=change(self.question_mask),
            labels=change(self.labels),
            after_image=change(self.after_image),
            head=None if self.head is None else change(self.head),
        )

    def pin_memory(self) -> "HostBatch":
        """Copy to memory from which a GPU copies without waiting; the loader calls this."""
        return self.each(Tensor.pin_memory)

    def rows(self, rows: slice) -> "HostBatch":
        """Return some of the rows, each with its own image."""
        return replace(
            self,
            rows_per_image=1,
            packed=None,
            inputs={name: value[rows] for name, value in self.inputs.items()},
            question_mask=self.question_mask[rows],
            labels=self.labels[rows],
            after_image=self.after_image[rows],
        )


def host_batch(batch: TokenBatch, image_token_id: int) -> HostBatch:
    """Convert a collated batch on the CPU."""
    assert batch.labels is not None
    is_image = batch.inputs["input_ids"] == image_token_id
    is_after = is_image.long().flip(-1).cumsum(-1).flip(-1) == 0
    text = is_after & batch.inputs["attention_mask"].bool()
    return HostBatch(
        inputs=batch.inputs,
        question_mask=batch.question_mask,
        labels=batch.labels,
        after_image=text,
        tail=int(is_after.sum(-1).max()),
        num_answer=int((batch.labels != IGNORED).sum(-1).max()),
    )


def to_device(batch: HostBatch, device: torch.device) -> HostBatch:
    """Move a batch to a device."""
    return batch.each(lambda value: value.to(device, non_blocking=True))


def pack(batch: HostBatch, pad: int) -> HostBatch:
    """Add the packed form, if an image has several rows: their last columns follow one head."""
    head, num_rows, tail = batch.head, batch.rows_per_image, batch.tail
    if num_rows == 1 or head is None:
        return batch
    ids = batch.inputs["input_ids"]
    device, length, prefix = ids.device, ids.shape[1], len(head)
    num_pad = length - batch.inputs["attention_mask"].sum(-1, keepdim=True)
    place = torch.arange(length - tail, length, device=device) - num_pad  # column before padding
    place, text = (part.unflatten(0, (-1, num_rows)).flatten(1) for part in (place, ids[:, -tail:]))
    real = place >= prefix  # (images, rows x tail)
    images = len(real)
    row = torch.arange(1, num_rows + 1, device=device).repeat_interleave(tail)
    row = torch.cat([row.new_zeros(prefix), row])
    order = torch.arange(len(row), device=device)
    visible = (order[:, None] >= order) & ((row[:, None] == row) | (row == 0))
    is_token = torch.cat([real.new_ones(images, prefix), real], 1)
    # Padding attends to itself: a softmax over nothing is NaN.
    mask = (visible & is_token[:, None]) | torch.eye(len(row), dtype=torch.bool, device=device)
    answer = torch.arange(tail - batch.num_answer - 1, tail - 1, device=device)
    starts = prefix + tail * torch.arange(num_rows, device=device)
    inputs = {
        "input_ids": torch.cat([head.expand(images, -1), text.masked_fill(~real, pad)], 1),
        "attention_mask": mask[:, None],
        "position_ids": torch.cat([order[:prefix].expand(images, -1), place.clamp(min=0)], 1),
        "pixel_values": batch.inputs["pixel_values"][::num_rows],
    }
    columns = (starts[:, None] + answer).flatten()
    return replace(batch, packed=Packed(inputs, num_rows, starts, columns))


@contextmanager
def shared_images(tower: nn.Module, rows_per_image: int) -> Iterator[None]:
    """Inside, the tower encodes an image of several consecutive rows only once."""

    def before(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        inputs = {name: _every(value, rows_per_image) for name, value in kwargs.items()}
        return tuple(_every(value, rows_per_image) for value in args), inputs

    def after(_module: nn.Module, _args: object, output: Any) -> Any:
        return type(output)(**{k: _repeat(value, rows_per_image) for k, value in output.items()})

    if rows_per_image == 1:
        yield
        return
    hooks = [
        tower.register_forward_pre_hook(before, with_kwargs=True),
        tower.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _every(value: Any, step: int) -> Any:
    return value[::step] if isinstance(value, Tensor) else value


def _repeat(value: Any, times: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_repeat(part, times) for part in value)
    return value.repeat_interleave(times, 0) if isinstance(value, Tensor) else value
