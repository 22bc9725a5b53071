"""Images on disk: NYUDepthv2, SUN RGB-D, one's own."""

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from eligo.errors import InputError
from eligo.images import remark_shared
from eligo.pixels.config import AugmentConfig, FilesDataConfig, InputsConfig, TextConfig
from eligo.pixels.data.augment import Prepared, augment
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.inputs import normalise_rgb
from eligo.pixels.data.pictures import (
    look_at_photo,
    read_depth,
    read_label,
    read_photo,
    remark_depth,
    remark_labels,
)
from eligo.pixels.data.records import Record, Split, class_names, read_records
from eligo.pixels.text.batch import Provenance
from eligo.pixels.text.encoders import TextEncoder
from eligo.pixels.text.table import PhraseTable, Said, words_of
from eligo.pixels.training.losses import IGNORED
from eligo.train.check import DataCheck
from eligo.train.data import epoch_batches

_log = logging.getLogger("eligo.pixels")


class Images:
    """The images of a split as a map-style dataset, with the numbers of their words."""

    def __init__(
        self,
        records: list[Record],
        classes: tuple[str, ...],
        inputs: InputsConfig,
        text: TextConfig,
        encoder: TextEncoder | None,
    ) -> None:
        self.records, self.classes, self.inputs = records, classes, inputs
        self.said: list[list[Said]] = [
            words_of(text, classes, record.tags or (), record.captions or ()) for record in records
        ]
        _remark_left_out(records, text)
        self.table: PhraseTable | None = None
        if encoder is not None:
            said = (phrase for phrases in self.said for phrase in phrases)
            self.table = PhraseTable(encoder, said, text.num_words(len(classes)))

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int, *, words_of: int | None = None) -> Prepared:
        """One image; with another one's words if `words_of` says whose."""
        record = self.records[index]
        photo = read_photo(record.image)
        rgb = photo.pixels
        shape = rgb.shape[-2:]
        if record.depth is None or self.inputs.depth == "none":
            depth, mask = torch.zeros(1, *shape), torch.zeros(1, *shape, dtype=torch.bool)
        else:
            depth, mask = read_depth(record.depth, self.inputs, photo)
        if record.label is None:
            raise InputError(f"{record.id}: has no label, which training and measuring need")
        labels = read_label(record.label, len(self.classes), photo)
        said = self.said[index if words_of is None else words_of]
        numbers = torch.zeros(0, dtype=torch.int64)
        if self.table is not None:
            numbers = self.table.numbers(said)
        return Prepared(normalise_rgb(rgb, self.inputs.channel_order), depth, mask, labels, numbers)

    def look(self, record: Record) -> tuple[bool, tuple[int, int]]:
        """Raise what `read` would, at less cost; whether any pixel has a label, and the size."""
        photo = look_at_photo(record.image)
        if record.depth is not None and self.inputs.depth != "none":
            read_depth(record.depth, self.inputs, photo)
        if record.label is None:
            raise InputError(f"{record.id}: has no label, which training and measuring need")
        labels = read_label(record.label, len(self.classes), photo)
        return bool((labels != IGNORED).any()), photo.shape


def _remark_left_out(records: list[Record], text: TextConfig) -> None:
    """Say how many images have more tags or captions than count."""
    for kind, most in (("tags", text.max_tags), ("captions", text.max_captions)):
        counts = [len(getattr(record, kind) or ()) for record in records]
        if kind in text.kinds and max(counts, default=0) > most:
            longest = records[counts.index(max(counts))]
            _log.warning(
                "%d of %d images have more than %d %s, and the first %d count: %r has %d; "
                "--text.max_%s reads more",
                sum(count > most for count in counts), len(counts), most, kind, most,
                longest.id, max(counts), kind,
            )  # fmt: skip


class Varied:
    """Training images, varied."""

    def __init__(self, images: Images, config: AugmentConfig) -> None:
        self.images, self.config = images, config

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Prepared:
        return augment(self.images.read(index), self.config)


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

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """The files' own words, none, and another image's; the truth is never the headline."""
        if self.encoder is None:
            return ("none",)
        if self.text.source == "labels":
            return ("predicted", "none")  # every image has the same words
        if self.config.words_are == "oracle":
            return ("none", "oracle", "shuffled")
        return ("predicted", "none", "shuffled")

    def check(self, check: DataCheck) -> None:
        """Every image with its depth and labels, and whether there is anything to learn."""
        splits: tuple[Split, ...] = ("train", "validation")
        for split in splits:
            images = self._images(split)
            before = len(check.problems)
            found = check.each(f"{split} images", images.records, images.look)
            if len(check.problems) > before:
                continue
            if not any(labelled for labelled, _ in found):
                check.add(
                    f"{split} images: got only label 0, which is ignored, in all {len(found)} "
                    f"(the first is {images.records[0].label}); expected 1 to {len(self.classes)}"
                )
            sizes = sorted({size for _, size in found})
            if split == "train" and len(sizes) > 1 and self.augmentation.crop is None:
                check.add(
                    f"train images: got {len(sizes)} sizes, such as {sizes[0]} and {sizes[-1]} "
                    "pixels, expected one size for all; give augment.crop"
                )

    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Batch]:
        """Shuffled epochs over the training images."""
        images = self._images("train")
        path = images.records[0].depth
        if rank == 0 and path is not None:
            first = images.read(0)
            flags = ("--inputs.depth", "--inputs.depth_scale")
            remark_depth(path, (first.depth, first.depth_mask), self.inputs, flags)
        found = epoch_batches(
            Varied(images, self.augmentation), batch_size, seed, start_step, rank, world_size,
            num_workers=self.config.num_workers, collate=_stacked,
            pin_memory=self.device.type == "cuda",
        )  # fmt: skip
        said = self.config.words_are if self.text.source != "labels" else "predicted"
        for parts in found:
            yield self._batch(images, parts, said)

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Every image of a split once; successive ones of one size come together."""
        images = self._images(split)
        if provenance == "shuffled" and len(images) == 1:
            return  # there is no other one
        waiting: list[Prepared] = []
        for index in range(len(images)):
            other = (index + max(1, len(images) // 2)) % len(images)
            image = images.read(index, words_of=other if provenance == "shuffled" else None)
            if waiting and (len(waiting) == batch_size or waiting[0].rgb.shape != image.rgb.shape):
                yield self._batch(images, _stacked(waiting), provenance)
                waiting = []
            waiting.append(image)
        yield self._batch(images, _stacked(waiting), provenance)

    def _images(self, split: Split) -> Images:
        if split not in self._splits:
            kinds = () if self.encoder is None else self.text.kinds
            records = read_records(self.config, split, words=kinds)
            made = Images(records, self.classes, self.inputs, self.text, self.encoder)
            if made.table is not None:
                made.table.to(self.device)
            self._splits[split] = made
            self._remark(split, records)
        return self._splits[split]

    def _remark(self, split: Split, records: list[Record]) -> None:
        """Say what is odd about the files of a split: labels from 0, images of the training."""
        labels = [record.label for record in records if record.label is not None]
        remark_labels(labels, len(self.classes))
        if split == "train":
            return
        try:
            learned = read_records(self.config, "train")
        except InputError:  # measured where the training images are not
            return
        paths = ([record.image for record in some] for some in (learned, records))
        remark_shared(*paths, names=("training", split))

    def _batch(self, images: Images, parts: tuple[Tensor, ...], provenance: Provenance) -> Batch:
        move = (part.to(self.device, non_blocking=True) for part in parts)
        rgb, depth, mask, labels, numbers = move
        text = None
        if images.table is not None and provenance != "none":
            text = images.table.batch(numbers, provenance)
        return Batch(rgb, labels, depth, mask, text)


def _stacked(images: list[Prepared]) -> tuple[Tensor, ...]:
    shapes = {tuple(image.rgb.shape[-2:]) for image in images}
    if len(shapes) > 1:
        raise InputError(
            f"got images of {sorted(shapes)[:4]} pixels in one batch, expected one size; give "
            "augment.crop"
        )
    names = ("rgb", "depth", "depth_mask", "labels", "numbers")
    return tuple(torch.stack([getattr(image, name) for image in images]) for name in names)
