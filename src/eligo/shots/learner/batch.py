"""Lessons of which some examples are shown, and what can be known from those."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.shots.learner.lessons import NUM_VALUES, Lessons


class Meanings(NamedTuple):
    """What the two words of every question mean."""

    values: Int64[Tensor, "lessons 8 2"]
    tellable: Bool[Tensor, "lessons 8 2"]
    """Whether a clear example told."""


class Batch(NamedTuple):
    """One step's lessons."""

    lessons: Lessons
    shown: Bool[Tensor, "lessons 4"]

    @property
    def told(self) -> Bool[Tensor, "lessons 4"]:
        """Examples that give their word away."""
        return self.shown & self.lessons.clear

    def decided(self) -> Bool[Tensor, "lessons 8"]:
        """Questions that their examples decide: both are shown, and clear."""
        lessons = self.lessons
        return lessons.valid & (self.told[:, None] | ~lessons.needs).all(-1)

    def meanings(self) -> Meanings:
        """Words stand in the order of attributes, and so do values counted through all of them."""
        lessons = self.lessons
        spoken = torch.where(lessons.needs, lessons.example_value[:, None], NUM_VALUES)
        values, place = spoken.sort(-1)
        tellable = self.told[:, None].expand_as(spoken).gather(2, place)[..., :2]
        return Meanings(values[..., :2], tellable & lessons.valid[..., None])
