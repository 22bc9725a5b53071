"""Captioned image files whose features are stored: batches of states instead of images.

The order of the batches is that of `file_source`; so is the image that takes the place of an
unreadable one.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from eligo.captions import names_sides
from eligo.errors import InputError
from eligo.patches.config import KarpathyDataConfig
from eligo.patches.data.batch import Batch, Pieces, States, pad_pieces
from eligo.patches.data.cache import CachedCaptions, FeatureCache
from eligo.patches.data.file_source import FileSet, FileSource, warn_unreadable
from eligo.patches.data.readers import CaptionedImage
from eligo.patches.model.encoders import TextEncoder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.train.check import DataCheck
from eligo.train.processes import Processes

_log = logging.getLogger("eligo")


class CachedSource(FileSource):
    """The training and validation splits, with features from `data.cache`."""

    def check(self, check: DataCheck) -> None:  # noqa: ARG002 (the cache has its own)
        """Compute the features that are missing, of both splits."""
        train, validation = self._splits
        warn_unreadable("training", train.given, _unreadable(train))
        warn_unreadable("validation", validation.given, _unreadable(validation))

    def _examples(self, images: Sequence[CaptionedImage]) -> tuple["CachedPairs", int | None]:
        """Return the pairs, and the number of workers that gather their features."""
        del images  # those of the cache
        train = self._splits[0]
        pairs = CachedPairs(train, self.model.text_encoder)
        return pairs, 0 if pairs.on_device else self.config.num_workers

    @cached_property
    def _splits(self) -> tuple[CachedCaptions, CachedCaptions]:
        train, validation = self.read("train"), self.read("val")
        cache = open_cache(self.config, self.model, Processes())
        num_mirrored = len(train) if self.config.cache_mirrored else 0
        stored = cache.features(
            [*train, *validation], dense=self.uses_dense, num_mirrored=num_mirrored
        )
        size = (stored.images.num_bytes + stored.texts.num_bytes) / 1e9
        device = self.model.device
        if device.type != "cpu" and size <= self.config.cache_memory_gb:
            _log.info("features (%.2f GB) are kept in the memory of %s", size, device)
            stored.images.to(device)
            stored.texts.to(device)
        return stored[: len(train)], stored[len(train) :]

    @cached_property
    def _dev(self) -> FileSet:
        return CachedSet(self._splits[1], self.model)


def open_cache(
    config: KarpathyDataConfig, model: RetrievalModel, processes: Processes | None = None
) -> FeatureCache:
    """Open the folder `data.cache` for the encoders of a model."""
    assert config.cache is not None
    return FeatureCache(
        config.cache,
        model,
        dtype=config.cache_dtype,
        num_workers=config.num_workers,
        processes=processes,
    )


class CachedPairs:
    """All pairs of an image and one of its captions, as rows of stored features."""

    def __init__(self, stored: CachedCaptions, encoder: TextEncoder) -> None:
        self.stored, self.pad = stored, encoder.tokenizer.pad_token_id
        self.word_mask = encoder.word_mask
        self.on_device = stored.images.on_device
        """Whether the features are on the device already; worker processes must not use it."""
        counts = enumerate(map(len, stored.caption_rows))
        self.pairs = [(i, j) for i, count in counts for j in range(count)]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[int, int, int | None, int]:
        """Return the rows of image, caption and dense caption, and the image's index."""
        stored = self.stored
        for offset in range(len(self.pairs)):
            number, caption = self.pairs[(index + offset) % len(self.pairs)]
            row = stored.image_rows[number]
            if stored.mirrored_rows and torch.rand(()) < 0.5:
                given = stored.given[number].captions[caption]
                row = row if names_sides(given) else stored.mirrored_rows[number]
            if row is not None:
                dense = None if stored.dense_rows is None else stored.dense_rows[number]
                index_in_file = stored.given[number].index
                return row, stored.caption_rows[number][caption], dense, index_in_file
        raise InputError(f"data.images: none of {len(stored.given)} images can be read")

    def collate(self, examples: list[tuple[int, int, int | None, int]]) -> Batch:
        """Return the features of the examples as one batch."""
        images, texts, dense, ids = zip(*examples, strict=True)
        dense = [row for row in dense if row is not None]
        return Batch(
            images=self.stored.images.gather(images),
            texts=self._texts(texts),
            dense=self._texts(dense) if dense else None,
            positive=None,
            image_ids=torch.tensor(ids),
        )

    def _texts(self, rows: Sequence[int]) -> Pieces:
        return gather_texts(self.stored, rows, self.pad, self.word_mask)


def gather_texts(
    stored: CachedCaptions,
    rows: Sequence[int],
    pad: int,
    word_mask: Callable[[Tensor, Tensor], Tensor],
) -> Pieces:
    """Return the states of texts, and which of their word pieces are words."""
    ids, mask = pad_pieces([stored.pieces[row] for row in rows], pad)
    return stored.texts.gather(rows, mask.shape[1]), word_mask(ids, mask)


class CachedSet(FileSet):
    """Images of one split and all their captions, as stored features."""

    def __init__(self, stored: CachedCaptions, model: RetrievalModel) -> None:
        super().__init__(stored.given, model)
        self.stored, self.pad = stored, model.text_encoder.tokenizer.pad_token_id
        self.unreadable = _unreadable(stored)
        if len(self.unreadable) == len(stored.given):
            warn_unreadable("evaluated", stored.given, self.unreadable)  # raises
        rows = enumerate(stored.image_rows)
        self._numbers = [number for number, row in rows if row is not None]

    def check(self, check: DataCheck) -> None:
        """Do nothing: images that were read have features."""

    def images(self, size: int) -> Iterator[States]:
        """Yield the states of all images, `size` at a time."""
        rows = [row for row in self.stored.image_rows if row is not None]
        for start in range(0, len(rows), size):
            yield self.stored.images.gather(rows[start : start + size])

    def texts(self, size: int) -> Iterator[Pieces]:
        """Yield the states of all captions, `size` at a time."""
        self._warn_truncated([text for image in self.kept for text in image.captions])
        rows = [row for number in self._numbers for row in self.stored.caption_rows[number]]
        yield from self._texts(rows, size)

    def dense(self, size: int) -> Iterator[Pieces]:
        """Yield the states of the dense captions of all images, `size` at a time."""
        dense = self.stored.dense_rows
        if dense is None:
            yield from super().dense(size)
            return
        self._warn_truncated([image.dense or "" for image in self.kept], dense=True)
        yield from self._texts([dense[number] for number in self._numbers], size)

    def _texts(self, rows: Sequence[int], size: int) -> Iterator[Pieces]:
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            yield gather_texts(self.stored, some, self.pad, self.encoder.word_mask)


def _unreadable(stored: CachedCaptions) -> list[str]:
    pairs = zip(stored.given, stored.image_rows, strict=True)
    return [str(image.path) for image, row in pairs if row is None]
