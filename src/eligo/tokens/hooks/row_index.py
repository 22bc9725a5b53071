"""Which images stand in which row of a batch, known without asking the device.

Indices of vision tokens come one row per image; sorting and moving columns needs one row per row of
the batch. Where every row has equally many images, the one is a view of the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Seats:
    """Rows of images."""

    rows: Sequence[int]
    """Per image: its row, in ascending order."""
    batch: int

    @cached_property
    def per_row(self) -> list[list[int]]:
        """Per row: its images."""
        found: list[list[int]] = [[] for _ in range(self.batch)]
        for image, row in enumerate(self.rows):
            found[row].append(image)
        return found

    @cached_property
    def most(self) -> int:
        """Images of the row that has most."""
        return max(map(len, self.per_row))

    @cached_property
    def is_even(self) -> bool:
        """Whether all rows have equally many."""
        return len(self.rows) == self.batch * self.most

    def by_row(
        self, values: Shaped[Tensor, "images tokens *features"], fill: int = 0
    ) -> Shaped[Tensor, "batch most_tokens *features"]:
        """The images of a row side by side; `fill` where it has fewer than others."""
        if self.is_even:
            return values.reshape(self.batch, -1, *values.shape[2:])
        empty = values.new_full((1, *values.shape[1:]), fill)
        last = len(self.rows)
        slots = [images + [last] * (self.most - len(images)) for images in self.per_row]
        return torch.cat([values, empty])[upload(slots, values.device)].flatten(1, 2)

    def by_image(
        self, values: Shaped[Tensor, "batch most_tokens *features"]
    ) -> Shaped[Tensor, "images tokens *features"]:
        """The way back."""
        if self.is_even:
            return values.reshape(len(self.rows), -1, *values.shape[2:])
        places = [place for images in self.per_row for place in range(len(images))]
        rows, places = upload([self.rows, places], values.device)
        return values.unflatten(1, (self.most, -1))[rows, places]


def upload(values: Sequence[object], device: torch.device) -> Int[Tensor, "..."]:
    """Numbers that the host knows; blocking, a copy would wait for all that the device has to do.

    The memory is pageable, so it is staged before the call returns and may go away after it.
    """
    return torch.tensor(values).to(device, non_blocking=True)
