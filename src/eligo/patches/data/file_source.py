"""Captioned image files: an example is an image with one of its captions.

Unreadable images are skipped and listed: in training another one takes their place, in evaluation
their captions are skipped too.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from eligo.captions import Split
from eligo.errors import InputError
from eligo.images import open_image, upright_size, warn_shared_images
from eligo.patches.config import KarpathyDataConfig
from eligo.patches.data.augment import change_pieces, random_crop
from eligo.patches.data.batch import Batch, CaptionSource, Pieces, RetrievalSet, pad_pieces
from eligo.patches.data.readers import CaptionedImage, read_captions
from eligo.patches.model.encoders import TextEncoder, resize
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.chat import plain_text, tokenize
from eligo.train.check import DataCheck, listed
from eligo.train.data import epoch_batches, ordered_batches

_MEASURED = 10_000  # training captions whose length is measured
_log = logging.getLogger(__name__)


class FileSource(CaptionSource):
    """The training and validation splits of a Karpathy file."""

    def __init__(self, config: KarpathyDataConfig, model: RetrievalModel, *, dense: bool) -> None:
        self.config, self.model, self.uses_dense = config, model, dense

    def read(self, split: Split) -> list[CaptionedImage]:
        """Return the images of a split, with their captions."""
        images = read_captions(self.config, split)
        return images[: self.config.validation_images] if split == "val" else images

    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Batch]:
        """Yield shuffled epochs over all (image, caption) pairs."""
        images = self.read("train")
        if len(images) < 2:
            raise InputError(
                f"{self.config.captions}: got {len(images)} training image, expected at least 2: "
                "the texts of other images are the negatives"
            )
        if rank == 0:
            warn_shared_images([i.path for i in images], [i.path for i in self._dev.given])
            texts = [text for image in images for text in image.captions]
            self.model.text_encoder.warn_truncated(texts[:_MEASURED])
            if self.uses_dense:
                dense = [image.dense or "" for image in images[:_MEASURED]]
                self.model.text_encoder.warn_truncated(dense, dense=True)
        pairs, num_workers = self._examples(images)
        device = self.model.device
        batches = epoch_batches(
            pairs, batch_size, seed, start_step, rank, world_size,
            num_workers=num_workers,
            collate=pairs.collate,
            pin_memory=device.type == "cuda" and not pairs.on_device,
        )  # fmt: skip
        for batch in batches:
            yield batch.map(lambda part: part.to(device, non_blocking=True))

    def _examples(self, images: Sequence[CaptionedImage]) -> tuple[Any, int | None]:
        """Return the pairs of images and captions, and the number of workers that read them."""
        pairs = PairExamples(images, self.config, self.model, dense=self.uses_dense)
        return pairs, self.config.num_workers

    def check(self, check: DataCheck) -> None:
        """Check every image of both splits; raise if none of a split can be read."""
        self._dev.check(check)
        _unreadable(check, "training", self.read("train"))

    def validation(self) -> "FileSet":
        """Return the validation split."""
        return self._dev

    @cached_property
    def _dev(self) -> "FileSet":
        # Cached for all evaluations of a run: checking all images takes a while.
        return FileSet(self.read("val"), self.model, num_workers=self.config.num_workers)


class PairExamples:
    """All pairs of an image and one of its captions."""

    on_device = False

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        config: KarpathyDataConfig,
        model: RetrievalModel,
        *,
        dense: bool,
    ) -> None:
        self.images, self.config, self.uses_dense = images, config, dense
        self.side = model.image_encoder.image_size
        text = model.text_encoder
        self.tokenizer = text.tokenizer
        self.max_words, self.max_dense_words = text.max_words, text.max_dense_words
        self.word_mask = text.word_mask
        self.pairs = [(i, j) for i, image in enumerate(images) for j in range(len(image.captions))]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, list[int], list[int] | None, int]:
        """Return image bytes, word pieces, those of the dense caption, and the image's index."""
        for offset in range(len(self.pairs)):
            number, caption = self.pairs[(index + offset) % len(self.pairs)]
            image = self.images[number]
            try:
                pixels = read_image(image, self.side)
            except InputError as error:
                _log.warning("skipped: %s", error)
                continue
            dense = None
            if self.uses_dense:
                dense = self._pieces(image.dense or "", self.max_dense_words)
            return self._picture(pixels), self._varied(image.captions[caption]), dense, image.index
        raise InputError(f"data.images: none of {len(self.images)} images can be read")

    def _picture(self, pixels: Tensor) -> Tensor:
        if self.config.augment:
            return random_crop(pixels, self.side, flip=self.config.flip)
        return resize(pixels, self.side)

    def _varied(self, text: str) -> list[int]:
        pieces = self._pieces(text, self.max_words)
        if not self.config.augment:
            return pieces
        mask, size = self.tokenizer.mask_token_id, len(self.tokenizer)
        return [pieces[0], *change_pieces(pieces[1:-1], mask, size), pieces[-1]]

    def _pieces(self, text: str, longest: int) -> list[int]:
        text = plain_text(self.tokenizer, text)
        return tokenize(self.tokenizer, text, truncation=True, max_length=longest)["input_ids"]

    def collate(self, examples: list[Any]) -> Batch:
        """Return the examples as one batch."""
        images, texts, dense, ids = zip(*examples, strict=True)
        return Batch(
            images=torch.stack(images),
            texts=self._padded(texts),
            dense=self._padded(dense) if self.uses_dense else None,
            positive=None,
            image_ids=torch.tensor(ids),
        )

    def _padded(self, rows: Sequence[list[int]]) -> Pieces:
        ids, mask = pad_pieces(list(rows), self.tokenizer.pad_token_id)
        return ids, self.word_mask(ids, mask)


class FileSet(RetrievalSet):
    """Images of one split, and all their captions, image by image."""

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        model: RetrievalModel,
        *,
        num_workers: int | None = None,
    ) -> None:
        self.encoder: TextEncoder = model.text_encoder
        self.prepare, self.side = model.image_encoder.prepare, model.image_encoder.image_size
        self.given, self.num_workers = images, num_workers
        self._checked: set[bool] = set()  # kinds of captions whose length was checked

    @cached_property
    def unreadable(self) -> list[str]:
        """Files that cannot be opened; they and their captions are skipped."""
        return _unreadable(DataCheck(), "validation", self.given)

    def check(self, check: DataCheck) -> None:
        """Find the unreadable files, in all processes together."""
        self.unreadable = _unreadable(check, "validation", self.given)

    @cached_property
    def kept(self) -> list[CaptionedImage]:
        """Images that can be opened."""
        broken = set(self.unreadable)
        return [image for image in self.given if str(image.path) not in broken]

    @property
    def owners(self) -> Int[Tensor, " texts"]:
        """The image that each caption was written for."""
        counts = torch.tensor([len(image.captions) for image in self.kept])
        return torch.arange(len(counts)).repeat_interleave(counts)

    @property
    def positive(self) -> Bool[Tensor, "images texts"]:
        """An image and its captions."""
        return self.owners == torch.arange(len(self.kept)).unsqueeze(1)

    def images(self, size: int) -> Iterator[UInt8[Tensor, "images 3 side side"]]:
        """Yield all images, `size` at a time."""
        pictures = _Pictures(self.kept, self.side)
        for batch in ordered_batches(pictures, size, num_workers=self.num_workers):
            yield self.prepare(batch)

    def texts(self, size: int) -> Iterator[Pieces]:
        """Yield all captions, `size` at a time."""
        captions = [caption for image in self.kept for caption in image.captions]
        self._warn_truncated(captions)
        for start in range(0, len(captions), size):
            yield self.encoder.tokenize(captions[start : start + size])

    def dense(self, size: int) -> Iterator[Pieces]:
        """Yield the dense captions of all images, `size` at a time."""
        self._warn_truncated([image.dense or "" for image in self.kept], dense=True)
        for start in range(0, len(self.kept), size):
            chunk = self.kept[start : start + size]
            missing = next((image for image in chunk if image.dense is None), None)
            if missing is not None:
                raise InputError(
                    f"{missing.path}: no dense caption; name their file as data.dense (--dense)"
                )
            yield self.encoder.tokenize([image.dense or "" for image in chunk], dense=True)

    def _warn_truncated(self, texts: Sequence[str], *, dense: bool = False) -> None:
        """Log texts that are cut, once per set."""
        if dense not in self._checked:
            self._checked.add(dense)
            self.encoder.warn_truncated(texts, dense=dense)


class _Pictures:
    """Images in the size of the model."""

    def __init__(self, images: Sequence[CaptionedImage], side: int) -> None:
        self.images, self.side = images, side

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 side side"]:
        return resize(read_image(self.images[index], self.side), self.side)


def _unreadable(check: DataCheck, label: str, images: Sequence[CaptionedImage]) -> list[str]:
    """Return the paths of images that cannot be opened, with a warning; raise if none can."""
    results = check.each(f"{label} images", images, _why_unreadable)
    broken = sorted(result for result in results if result is not None)
    warn_unreadable(label, images, [why for _, why in broken])
    return [path for path, _ in broken]


def warn_unreadable(label: str, images: Sequence[CaptionedImage], broken: Sequence[str]) -> None:
    """Log the images of a split that are skipped; raise if none is left."""
    if len(broken) == len(images):
        raise InputError(
            f"none of {len(images)} {label} images can be read, the first is {images[0].path}; "
            "expected the folder that the captions' file names"
        )
    if broken:
        _log.warning(
            "of %d %s images, some are skipped because they cannot be read: %s",
            len(images), label, listed(broken),
        )  # fmt: skip


def _why_unreadable(image: CaptionedImage) -> tuple[str, str] | None:
    try:
        upright_size(image.path)
    except InputError as error:
        return str(image.path), str(error)
    return None


def read_image(image: CaptionedImage, side: int) -> UInt8[Tensor, "3 height width"]:
    """Return the bytes of an image file, for a model whose images have `side` pixels per side."""
    return torch.from_numpy(np.array(open_image(image.path, side))).permute(2, 0, 1)
