"""What a training step is made of: rows for a host, and how they are judged.

Every row is one image and one question: questions packed behind one image could not choose tokens
of their own. Rows are padded on the left and end with the answer, as `data.Collator` makes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from eligo.tokens.data.examples import IGNORED, TokenBatch


@dataclass(frozen=True)
class Packed:
    """Rows of one image behind that image, once: each sees it and itself, never another row.

    For the whole model, which chooses nothing, this is the same as the rows apart, and cheaper.
    """

    inputs: dict[str, Tensor]
    num_rows: int
    """Rows behind each image."""
    columns: Int64[Tensor, " columns"]
    """Where their answers are predicted, row after row."""


@dataclass(frozen=True)
class HostBatch:
    """What a host takes, and what is needed to judge what it says."""

    inputs: dict[str, Tensor]
    question_mask: Bool[Tensor, "batch length"]
    """Text of the prompt, never an answer."""
    labels: Int64[Tensor, "batch length"]
    """Answer and end of text at the right end, -100 elsewhere."""
    after_image: Bool[Tensor, "batch length"]
    """Text behind the last vision token: what an image can have changed."""
    tail: int
    """Columns at the right end that hold all such text."""
    num_answer: int
    """Tokens of the longest answer, with the end of text."""
    rows_per_image: int = 1
    """Neighbouring rows that show the same image."""
    packed: Packed | None = None
    """The same rows for the whole model."""

    def rows(self, rows: slice) -> "HostBatch":
        """Some of the rows, each with its own image."""
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
    """A collated batch (still on the CPU, where its lengths can be looked at)."""
    assert batch.labels is not None
    is_image = batch.inputs["input_ids"] == image_token_id
    behind = is_image.long().flip(-1).cumsum(-1).flip(-1) == 0
    text = behind & batch.inputs["attention_mask"].bool()
    return HostBatch(
        inputs=batch.inputs,
        question_mask=batch.question_mask,
        labels=batch.labels,
        after_image=text,
        tail=int(behind.sum(-1).max()),
        num_answer=int((batch.labels != IGNORED).sum(-1).max()),
    )


def to_device(batch: HostBatch, device: torch.device) -> HostBatch:
    """The same batch there."""
    return replace(
        batch,
        inputs={name: value.to(device) for name, value in batch.inputs.items()},
        question_mask=batch.question_mask.to(device),
        labels=batch.labels.to(device),
        after_image=batch.after_image.to(device),
    )


@contextmanager
def shared_images(tower: nn.Module, rows_per_image: int) -> Iterator[None]:
    """Inside, the tower looks once at an image that several neighbouring rows show."""

    def fewer(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        few = {name: _every(value, rows_per_image) for name, value in kwargs.items()}
        return tuple(_every(value, rows_per_image) for value in args), few

    def again(_module: nn.Module, _args: object, output: Any) -> Any:
        return type(output)(**{k: _repeat(value, rows_per_image) for k, value in output.items()})

    if rows_per_image == 1:
        yield
        return
    hooks = [
        tower.register_forward_pre_hook(fewer, with_kwargs=True),
        tower.register_forward_hook(again),
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
        return tuple(_repeat(one, times) for one in value)
    return value.repeat_interleave(times, 0) if isinstance(value, Tensor) else value
