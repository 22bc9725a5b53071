"""Questions from files (VQAv2 folders, JSON lines), or from any dataset of examples."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eligo.errors import InputError
from eligo.images import side_of, upright_size, warn_shared_images
from eligo.tokens.config import LinesDataConfig, VqaDataConfig
from eligo.tokens.data.examples import Collator, FileExamples, ImageExamples, TokenExample
from eligo.tokens.data.prompts import has_fixed_grid, text_lengths
from eligo.tokens.training.batch import HostBatch, host_batch, pack, to_device
from eligo.train.check import DataCheck
from eligo.train.data import epoch_batches, ordered_batches
from eligo.vqa import VqaExample, read_vqa, read_vqa_lines, usual_answer

_MEASURED = 256  # questions whose length is measured
_log = logging.getLogger("eligo.tokens")


class FileSource:
    """Shuffled epochs of the training examples; the first validation examples."""

    def __init__(
        self,
        train: Dataset[TokenExample],
        validation: Dataset[TokenExample],
        processor: Any,
        *,
        instruction: str = "",
        questions_per_image: int = 1,
        num_workers: int | None = 0,
    ) -> None:
        """`questions_per_image`: on files of a LLaVA; see `can_share_images`.

        `num_workers`: 0 for examples in memory; see `eligo.train.data.worker_count`.
        """
        self.train, self.held_out = (
            FileExamples(part.rows, side_of(processor)) if isinstance(part, FileExamples) else part
            for part in (train, validation)
        )
        self.collator = Collator(processor, answers=True, instruction=instruction)
        self.processor, self.num_workers = processor, num_workers
        self.questions_per_image = questions_per_image

    def batches(
        self, size: int, seed: int, start_step: int, rank: int, world_size: int, device: Any
    ) -> Iterator[HostBatch]:
        """Yield part `rank` of the batch of every step: a pure function of (seed, step)."""
        repeats = math.gcd(size // world_size, self.questions_per_image)
        examples: Any = self.train
        if repeats > 1:
            examples = ImageExamples(_rows_of(self.train), repeats, side_of(self.processor))
        loader = epoch_batches(
            examples, size // repeats, seed, start_step, rank, world_size,
            num_workers=self.num_workers,
            collate=self._collate if repeats == 1 else self._collate_images,
            pin_memory=torch.device(device).type == "cuda",
        )  # fmt: skip
        for batch in loader:
            yield self._moved(batch, device)

    def validation(self, batch_size: int, device: Any) -> Iterator[HostBatch]:
        """Yield the same examples every time."""
        batches = ordered_batches(
            self.held_out,  # pyright: ignore[reportArgumentType]
            batch_size,
            num_workers=self.num_workers,
            collate=self._collate,
        )
        for batch in batches:
            yield to_device(batch, device)

    def check(self, check: DataCheck) -> None:
        """Check every image, question and answer of the files."""
        for label, examples in (("training", self.train), ("validation", self.held_out)):
            rows = _rows_of(examples)
            check.each(f"{label} images", list({row.image: 0 for row in rows}), upright_size)
            check.each(f"{label} questions", rows, self._check_text)

    def _check_text(self, row: VqaExample) -> None:
        try:
            self.collator.check(row.question, usual_answer(row.answers))
        except InputError as error:
            raise InputError(f"question {row.id} on {row.image}: {error}") from None

    @property
    def num_examples(self) -> int:
        """Training examples in an epoch."""
        return _length(self.train)

    @property
    def num_text(self) -> int:
        """The median number of prompt tokens that are not vision tokens."""
        count = min(_MEASURED, _length(self.held_out))
        rows = _rows_of(self.held_out)[:count] or [self.held_out[row] for row in range(count)]
        return int(median(text_lengths(self.processor, [row.question for row in rows])))

    def _collate(self, examples: Sequence[TokenExample]) -> HostBatch:
        return host_batch(self.collator(examples), self.collator.image_token_id)

    def _collate_images(self, groups: Sequence[Sequence[TokenExample]]) -> HostBatch:
        """Return rows of several questions on each image, with one row of pixels for all."""
        count = len(groups[0])
        rows = self.collator([row for group in groups for row in group], share_images=True)
        batch = host_batch(rows, self.collator.image_token_id)
        return replace(batch, rows_per_image=count, head=_shared_head(batch))

    def _moved(self, batch: HostBatch, device: Any) -> HostBatch:
        """Move a batch; repeat the pixels of images with several rows there, and pack the rows."""
        batch = to_device(batch, device)
        if batch.rows_per_image == 1:
            return batch
        pixels = batch.inputs["pixel_values"].repeat_interleave(batch.rows_per_image, 0)
        batch = replace(batch, inputs={**batch.inputs, "pixel_values": pixels})
        return pack(batch, self.processor.tokenizer.pad_token_id or 0)


def can_share_images(processor: Any, examples: Dataset[TokenExample]) -> bool:
    """Return whether questions on an image can share its pixels: files, one row of pixels each."""
    return has_fixed_grid(processor) and isinstance(examples, FileExamples)


def _shared_head(batch: HostBatch) -> Int64[Tensor, " prefix"] | None:
    """Return the tokens up to the end of the image, if they are the same in all rows."""
    ids, real = batch.inputs["input_ids"], batch.inputs["attention_mask"].bool()
    heads = [row[keep] for row, keep in zip(ids, real & ~batch.after_image, strict=True)]
    return heads[0] if all(head.equal(heads[0]) for head in heads) else None


class Resized(Dataset[TokenExample]):
    """Examples with downscaled images, for hosts that take images of any size."""

    def __init__(self, inner: Dataset[TokenExample], longest: int | None, area: int | None) -> None:
        self.inner, self.longest, self.area = inner, longest, area

    def __len__(self) -> int:
        return _length(self.inner)

    def __getitem__(self, index: int) -> TokenExample:
        example = self.inner[index]
        if not isinstance(example.image, Image.Image):
            return example
        width, height = example.image.size
        factor = min(1.0, (self.longest or max(width, height)) / max(width, height))
        if self.area is not None:
            factor = min(factor, (self.area / (width * height)) ** 0.5)
        if factor == 1.0:
            return example
        size = (max(28, int(width * factor)), max(28, int(height * factor)))
        return replace(example, image=example.image.resize(size, Image.Resampling.BICUBIC))


def _length(examples: Dataset[TokenExample]) -> int:
    return len(examples)  # pyright: ignore[reportArgumentType]


def _rows_of(examples: Dataset[TokenExample]) -> Sequence[VqaExample]:
    """Return the rows of files; other examples need no check."""
    while isinstance(examples, Resized):
        examples = examples.inner
    return examples.rows if isinstance(examples, FileExamples) else ()


def read_examples(
    config: VqaDataConfig | LinesDataConfig, *, to_learn: bool = True
) -> tuple[Dataset[TokenExample], Dataset[TokenExample]]:
    """Read training and validation examples; `to_learn`: only those with an answer to learn."""
    if isinstance(config, LinesDataConfig):
        files = ((config.train_lines, "train"), (config.validation_lines, "val"))
        rows = [read_vqa_lines(path, config.images, split=split) for path, split in files]
    else:
        subtypes = (config.train_subtype, config.validation_subtype)
        rows = [read_folder(config.folder, subtype) for subtype in subtypes]
    if to_learn:
        rows = [_answered(*pair) for pair in zip(rows, ("training", "validation"), strict=True)]
    train, validation = rows
    warn_shared_images([row.image for row in train], [row.image for row in validation])
    return FileExamples(train), FileExamples(validation[: config.validation])


def _answered(rows: list[VqaExample], label: str) -> list[VqaExample]:
    """Drop questions whose answer is only an article or punctuation."""
    dropped = [row for row in rows if not usual_answer(row.answers)]
    if dropped:
        _log.warning(
            "%d of %d %s questions are skipped: without articles and punctuation, their usual "
            "answer is empty, such as %r of question %s",
            len(dropped), len(rows), label, dropped[0].answers[0], dropped[0].id,
        )  # fmt: skip
    return [row for row in rows if usual_answer(row.answers)]


def read_folder(folder: Path, subtype: str) -> list[VqaExample]:
    """Read the questions, annotations and images of one subtype from a VQAv2 folder."""
    files = []
    for kind in ("questions", "annotations"):
        paths = sorted(folder.glob(f"*{subtype}*{kind}.json"))
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or "none"
            raise InputError(
                f"{folder}: expected one file *{subtype}*{kind}.json, found {names}; a folder in "
                "the format of VQAv2 is written by `eligo scenes export vqa --out DIR`"
            )
        files.append(paths[0])
    return read_vqa(files[0], files[1], folder)
