"""Images on disk: NYUDepthv2, SUN RGB-D, your own."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from eligo.errors import InputError
from eligo.images import warn_shared_images
from eligo.pixels.config import (
    IGNORED,
    AugmentConfig,
    FilesConfig,
    FilesDataConfig,
    InputsConfig,
    TextConfig,
)
from eligo.pixels.data.augment import Prepared, augment, augment_batch, inside, resized
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.pictures import (
    LabelNumbers,
    Photo,
    check_depth_range,
    check_label_range,
    check_photo,
    normalise_depth,
    normalise_rgb,
    read_label,
    read_photo,
    read_stored_depth,
)
from eligo.pixels.data.records import Record, Split, class_names, read_records
from eligo.pixels.text.batch import Provenance
from eligo.pixels.text.encoders import TextEncoder
from eligo.pixels.text.table import PhraseTable, words_of
from eligo.train.check import DataCheck
from eligo.train.data import epoch_batches, epoch_rows, ordered_batches

_log = logging.getLogger("eligo.pixels")


class Images:
    """The images of a split, with their words as rows of a table."""

    def __init__(
        self,
        records: list[Record],
        classes: tuple[str, ...],
        config: FilesConfig,
        inputs: InputsConfig,
        text: TextConfig,
        encoder: TextEncoder | None,
    ) -> None:
        self.records, self.classes, self.inputs = records, classes, inputs
        self.numbers = LabelNumbers(len(classes), config.label_offset, config.ignore_index)
        self.words = [
            words_of(text, classes, record.tags or (), record.captions or ()) for record in records
        ]
        _log_unused_words(records, text)
        self.table: PhraseTable | None = None
        self.word_ids = torch.zeros(len(records), 0, dtype=torch.int64)
        if encoder is not None:
            phrases = (phrase for words in self.words for phrase in words)
            self.table = PhraseTable(encoder, phrases, text.num_words(len(classes)))
            self.word_ids = torch.stack([self.table.ids(words) for words in self.words])

    def __len__(self) -> int:
        return len(self.records)

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes, which need no vectors on a device."""
        return vars(self) | {"table": None, "words": []}

    def read(self, index: int, *, words_from: int | None = None) -> Prepared:
        """Load one image, with its own words or those of image `words_from`."""
        record = self.records[index]
        photo = read_photo(record.image)
        if record.depth is None or self.inputs.depth == "none":
            depth = torch.full((1, *photo.pixels.shape[-2:]), float("nan"))
        else:
            depth = read_stored_depth(record.depth, self.inputs, photo, record.depth_scale)
        labels = self._labels(record, photo)
        word_ids = self.word_ids[index if words_from is None else words_from]
        image = Prepared(photo.pixels, depth, labels, word_ids)
        size = self.inputs.size
        return image if size is None else resized(image, size, antialias=True)

    def check(self, record: Record) -> tuple[bool, tuple[int, int]]:
        """Raise what `read` would raise; returns whether any pixel has a label, and the size."""
        photo = check_photo(record.image)
        if record.depth is not None and self.inputs.depth != "none":
            read_stored_depth(record.depth, self.inputs, photo)
        size = self.inputs.size or photo.shape
        return bool((self._labels(record, photo) != IGNORED).any()), size

    def _labels(self, record: Record, photo: Photo) -> Tensor:
        if record.label is None:
            raise InputError(f"{record.id}: has no label; training and evaluation need one")
        return read_label(record.label, self.numbers, photo)


def _log_unused_words(records: list[Record], text: TextConfig) -> None:
    """Log how many images have more tags or captions than are used."""
    for kind, most in (("tags", text.max_tags), ("captions", text.max_captions)):
        counts = [len(getattr(record, kind) or ()) for record in records]
        if kind in text.kinds and max(counts, default=0) > most:
            longest = records[counts.index(max(counts))]
            _log.warning(
                "%d of %d images have more than %d %s, of which the first %d are used: %r has %d; "
                "--text.max_%s uses more",
                sum(count > most for count in counts), len(counts), most, kind, most,
                longest.id, max(counts), kind,
            )  # fmt: skip


class AugmentedImages:
    """Training images with augmentation, as a map-style data set."""

    def __init__(self, images: Images, config: AugmentConfig) -> None:
        self.images, self.config = images, config

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Prepared:
        return augment(self.images.read(index), self.config)


class _WholeImages:
    """Images as they are; with `shift`, each with the words of the one so many places on."""

    def __init__(self, images: Images, shift: int = 0) -> None:
        self.images, self.shift = images, shift

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Prepared:
        return self.images.read(index, words_from=(index + self.shift) % len(self.images))


class FileSource(ImageSource):
    """The training, validation and test images of a data set on disk."""

    def __init__(
        self,
        config: FilesDataConfig,
        inputs: InputsConfig,
        text: TextConfig,
        encoder: TextEncoder | None,
        augmentation: AugmentConfig,
        device: torch.device,
    ) -> None:
        self.config, self.inputs, self.text, self.encoder = config, inputs, text, encoder
        self.augmentation, self.device = augmentation, device
        self.classes = class_names(config)
        self._splits: dict[Split, Images] = {}
        self._decoded: dict[Split, list[Tensor]] = {}

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """The files' own words, none, another image's; oracle words are never the main result."""
        if self.encoder is None:
            return ("none",)
        if self.text.source == "labels":
            return ("predicted", "none")  # every image has the same words
        if self.config.words_are == "oracle":
            return ("none", "oracle", "shuffled")
        return ("predicted", "none", "shuffled")

    def check(self, check: DataCheck) -> None:
        """Check every image with its depth and labels, and that some pixels are labelled."""
        splits: tuple[Split, ...] = ("train", "validation")
        for split in splits:
            images = self._images(split)
            before = len(check.problems)
            checked = check.each(f"{split} images", images.records, images.check)
            if len(check.problems) > before:
                continue
            if not any(labelled for labelled, _ in checked):
                numbers = images.numbers
                check.add(
                    f"{split} images: got only label {numbers.ignored}, which is ignored, in all "
                    f"{len(checked)} (the first is {images.records[0].label}); expected "
                    f"{numbers.first} to {numbers.last}"
                )
            sizes = sorted({size for _, size in checked})
            if len(sizes) == 1 or (split == "validation" and not self.config.in_memory):
                continue
            if self.config.in_memory or self.augmentation.crop is None:
                way = "give inputs.size"
                way += "" if self.config.in_memory else " or augment.crop"
                check.add(
                    f"{split} images: got {len(sizes)} sizes, such as {sizes[0]} and {sizes[-1]} "
                    f"pixels, expected one size for all; {way}"
                )

    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Batch]:
        """Shuffled epochs over the training images."""
        images = self._images("train")
        path = images.records[0].depth
        if rank == 0 and path is not None:
            first = normalise_depth(images.read(0).depth, self.inputs)
            flags = ("--inputs.depth", "--inputs.depth_scale")
            check_depth_range(first, path, self.inputs, flags)
        provenance = self.config.words_are if self.text.source != "labels" else "predicted"
        if self.config.in_memory:
            share = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
            steps = epoch_rows(len(images), batch_size, seed, start_step, self.device)
            stacked = (self._rows("train", rows[share]) for _, rows in steps)
        else:
            stacked = epoch_batches(
                AugmentedImages(images, self.augmentation), batch_size, seed, start_step, rank,
                world_size, num_workers=self.config.num_workers, collate=_stack,
                pin_memory=self.device.type == "cuda",
            )  # fmt: skip
        for parts in stacked:
            yield self._batch(images, parts, provenance)

    def augmented(self, batch: Batch) -> Batch:
        """Augment images in memory; others were augmented when they were read."""
        return augment_batch(batch, self.augmentation) if self.config.in_memory else batch

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Yield every image of a split once; successive ones of one size share a batch."""
        images = self._images(split)
        if provenance == "shuffled" and len(images) == 1:
            return  # there is no other image
        shift = max(1, len(images) // 2) if provenance == "shuffled" else 0
        if self.config.in_memory:
            for rows in torch.arange(len(images), device=self.device).split(batch_size):
                yield self._batch(images, self._rows(split, rows, shift), provenance)
            return
        whole = _WholeImages(images, shift)
        waiting: list[Prepared] = []
        for image in ordered_batches(whole, None, num_workers=self.config.num_workers):
            if waiting and (len(waiting) == batch_size or waiting[0].rgb.shape != image.rgb.shape):
                yield self._batch(images, _stack(waiting), provenance)
                waiting = []
            waiting.append(image)
        yield self._batch(images, _stack(waiting), provenance)

    def _images(self, split: Split) -> Images:
        if split not in self._splits:
            kinds = () if self.encoder is None else self.text.kinds
            records = read_records(self.config, split, words=kinds)
            loaded = Images(
                records, self.classes, self.config, self.inputs, self.text, self.encoder
            )
            if loaded.table is not None:
                loaded.table.to(self.device)
            if not self._splits:  # only for the first split
                self._check_labels(records, loaded.numbers)
            if split != "train":
                self._check_overlap(split, records)
            self._splits[split] = loaded
        return self._splits[split]

    def _check_labels(self, records: list[Record], numbers: LabelNumbers) -> None:
        """Warn if the labels of a custom data set seem to start at 0."""
        if self.config.classes is not None:
            labels = [record.label for record in records if record.label is not None]
            check_label_range(labels, numbers)

    def _check_overlap(self, split: Split, records: list[Record]) -> None:
        """Warn about images that are also training images."""
        try:
            training = read_records(self.config, "train")
        except InputError:  # the training images are not on this machine
            return
        paths = ([record.image for record in part] for part in (training, records))
        warn_shared_images(*paths, names=("training", split))

    def _rows(self, split: Split, rows: Tensor, shift: int = 0) -> list[Tensor]:
        """Return images in memory as `_stack` does; with `shift`, as `_WholeImages`."""
        word_ids = self._images(split).word_ids.to(self.device)
        pixels, stored, labels, frames = (part[rows] for part in self.decoded(split))
        return [pixels, stored, labels, word_ids[(rows + shift) % len(word_ids)], frames]

    def decoded(self, split: Split) -> list[Tensor]:
        """Return all images of a split on the device: bytes, depth, labels and frames."""
        if split not in self._decoded:
            images = _WholeImages(self._images(split))
            read = list(ordered_batches(images, None, num_workers=self.config.num_workers))
            pixels, stored, labels, _, frames = _stack(read)
            parts = (pixels, stored, labels, frames)
            self._decoded[split] = [part.to(self.device) for part in parts]
        return self._decoded[split]

    def _batch(self, images: Images, parts: list[Tensor], provenance: Provenance) -> Batch:
        moved = (part.to(self.device, non_blocking=True) for part in parts)
        pixels, stored, labels, word_ids, frames = moved
        rgb = normalise_rgb(pixels.permute(0, 3, 1, 2), self.inputs.channel_order)
        rgb.masked_fill_(~inside(frames, *labels.shape[1:]), 0.0)
        depth, mask = normalise_depth(stored, self.inputs)
        text = None
        if images.table is not None and provenance != "none":
            text = images.table.batch(word_ids, provenance)
        return Batch(rgb, labels, depth, mask, text)


def _stack(images: list[Prepared]) -> list[Tensor]:
    """Return bytes (height, width, 3), depth, labels, word ids and frames of a batch."""
    shapes = {tuple(image.rgb.shape[-2:]) for image in images}
    if len(shapes) > 1:
        raise InputError(
            f"got images of {sorted(shapes)[:4]} pixels in one batch, expected one size; give "
            "inputs.size or augment.crop"
        )
    height, width = images[0].labels.shape
    rows = [
        (
            image.rgb.permute(1, 2, 0),  # as they are stored
            image.depth,
            image.labels,
            image.word_ids,
            torch.tensor(image.frame or (0, 0, height, width)),
        )
        for image in images
    ]
    return default_collate(rows)  # in a worker, into shared memory
