"""Captioned scenes, rendered once on the training device.

Every scene that a caption is true of is a positive (`scenes.is_true`), not only the one it was
drawn for. Nothing is cropped or mirrored: captions mention sizes, left and right.
"""

from collections.abc import Iterator
from dataclasses import fields

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from eligo.patches.config import ScenesDataConfig
from eligo.patches.data.batch import Batch, CaptionSource, Pieces, RetrievalSet
from eligo.patches.model.build import CLS, FIRST_WORD, PAD, SEP
from eligo.scenes.captions import Captions, draw_captions, draw_dense_captions, is_true
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import Split, draw_scenes
from eligo.scenes.painter import render_all
from eligo.train import epoch_rows


class SceneSet(RetrievalSet):
    """Scenes of one split with their captions, as tensors on a device."""

    def __init__(
        self, scenes: SceneConfig, split: Split, count: int, captions: int, device: torch.device
    ) -> None:
        graph = draw_scenes(scenes, split, range(count), device)
        self.rendered = render_all(graph)
        self.captions = draw_captions(graph, captions)
        self.dense_words = draw_dense_captions(graph).words

    def __len__(self) -> int:
        return len(self.rendered.graph)

    @property
    def positive(self) -> Bool[Tensor, "images texts"]:
        """True pairs of scenes and captions (scene by scene)."""
        return is_true(self.captions, self.rendered.graph).flatten(0, 1).T

    @property
    def owners(self) -> Int[Tensor, " texts"]:
        """The scene that each caption was drawn for."""
        count = self.captions.relation.shape[1]
        return torch.arange(len(self), device=self.rendered.rgb.device).repeat_interleave(count)

    def images(self, size: int) -> Iterator[UInt8[Tensor, "images 3 side side"]]:
        """Yield all images, `size` at a time."""
        yield from self.rendered.rgb.split(size)

    def texts(self, size: int) -> Iterator[Pieces]:
        """Yield all captions, scene by scene."""
        yield from map(pieces_of, self.captions.words.flatten(0, 1).split(size))

    def dense(self, size: int) -> Iterator[Pieces]:
        """Yield the dense captions of all scenes."""
        yield from map(pieces_of, self.dense_words.split(size))


class SceneSource(CaptionSource):
    """Training and validation scenes, rendered on first use."""

    def __init__(
        self, config: ScenesDataConfig, device: torch.device, *, dense: bool, see: bool
    ) -> None:
        self.config, self.device = config, device
        self.uses_dense, self.adds_rendered = dense, see
        self._sets: dict[Split, SceneSet] = {}

    @property
    def training(self) -> SceneSet:
        """The training scenes."""
        return self._set("train", self.config.train_images, self.config.captions_per_image)

    def validation(self) -> SceneSet:
        """Return the validation scenes."""
        return self._set("validation", self.config.validation_images, 2)

    def _set(self, split: Split, count: int, captions: int) -> SceneSet:
        if split not in self._sets:
            self._sets[split] = SceneSet(self.config.scenes, split, count, captions, self.device)
        return self._sets[split]

    def shared_with(self, *, dense: bool, see: bool) -> "SceneSource":
        """Return a source for another run that shares the rendered scenes."""
        other = SceneSource(self.config, self.device, dense=dense, see=see)
        other._sets = self._sets
        return other

    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Batch]:
        """Yield shuffled epochs; `positive` covers the whole step, in every process."""
        scenes = self.training
        share = batch_size // world_size
        own = slice(rank * share, (rank + 1) * share)
        for step, rows in epoch_rows(len(scenes), batch_size, seed, start_step, self.device):
            yield self._batch(rows, step, own)

    def _batch(self, rows: Int64[Tensor, " images"], turn: int, own: slice) -> Batch:
        scenes, config = self.training, self.config
        numbers = torch.arange(config.captions_per_step, device=self.device) + turn
        captions = _pick(scenes.captions, rows, numbers % config.captions_per_image)
        own_rows = rows[own]
        return Batch(
            images=scenes.rendered.rgb[own_rows],
            texts=pieces_of(captions.words[own].flatten(0, 1)),
            dense=pieces_of(scenes.dense_words[own_rows]) if self.uses_dense else None,
            positive=is_true(captions, scenes.rendered.graph[rows]).flatten(0, 1).T,
            image_ids=None,
            rendered=scenes.rendered[own_rows] if self.adds_rendered else None,
        )


def _pick(captions: Captions, scenes: Tensor, numbers: Tensor) -> Captions:
    """Return the captions `numbers` of each of the scenes."""
    parts = (getattr(captions, field.name) for field in fields(captions))
    return Captions(*(part[scenes[:, None], numbers] for part in parts))


def pieces_of(words: Int64[Tensor, "texts length"]) -> Pieces:
    """Return word ids of scenes (-1 pads) as the small text encoder's pieces: [CLS] words [SEP]."""
    length = (words >= 0).sum(1, keepdim=True)
    ids = torch.where(words >= 0, words + FIRST_WORD, PAD)
    ends = words.new_full((len(words), 1), CLS), words.new_full((len(words), 1), PAD)
    ids = torch.cat([ends[0], ids, ends[1]], 1).scatter(1, length + 1, SEP)
    return ids, torch.arange(ids.shape[1], device=ids.device) <= length + 1
