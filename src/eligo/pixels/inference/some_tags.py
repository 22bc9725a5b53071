"""Rooms of which only some things are named: what a model makes of what nobody told it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.records import Split
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.text.batch import Provenance

Told = Literal["one thing unnamed", "one thing named"]
TOLD: tuple[Told, ...] = get_args(Told)
"""All tags but one thing's; the tags of wall, floor and that thing."""
_ROOM = 2  # wall and floor, the first tags of every room


class SomeTags(ImageSource):
    """The rooms of a source with some of their tags; which, is the same in any batch."""

    def __init__(self, source: ImageSource, told: Told) -> None:
        if not isinstance(source, SceneSource) or "oracle" not in source.provenances:
            raise InputError(
                "some tags: expected rooms that are made for it (data.kind scenes, without "
                "binding) and a model that reads tags; of files, nobody knows which tags are true"
            )
        self.source, self.told, self.classes = source, told, source.classes

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """The truth, but not all of it."""
        return ("oracle",)

    def batches(self, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        """Nothing is trained on these."""
        raise NotImplementedError

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Every room of a split once."""
        first = 0
        for batch in self.source.images(split, provenance, batch_size):
            if (text := batch.text) is not None:
                one = _one_thing(text.mask, first)
                room = torch.arange(text.mask.shape[1], device=one.device) < _ROOM
                text = text.only(~one if self.told == "one thing unnamed" else one | room)
            yield replace(batch, text=text)
            first += len(batch.rgb)


def _one_thing(mask: Bool[Tensor, "batch words"], first: int) -> Bool[Tensor, "batch words"]:
    """One tag of each room beside wall and floor; `first` is the number of the first room."""
    things = mask.clone()
    things[:, :_ROOM] = False
    number = torch.arange(first, first + len(mask), device=mask.device)
    chosen = number % things.sum(1).clamp_min(1)
    return things & (things.cumsum(1) == chosen[:, None] + 1)
