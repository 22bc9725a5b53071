"""Features of captioned images from frozen encoders: every image and text is encoded once.

    <cache>/files.json     size, time and SHA-256 of every image file
    <cache>/images-<key>/  states of the vision encoder, a row for each image content
    <cache>/texts-<key>/   states of the text encoder, a row for each sequence of word pieces

The key is a hash of all that the states depend on: weights and config of the encoder, their
precision, and for images size, colours and the way they are resized. States are those before the
head, computed in float32 and in evaluation mode. An interrupted run continues at the first missing
shard; batches are the same, so that the files are identical.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eligo.captions import CaptionedImage
from eligo.errors import InputError
from eligo.images import open_image
from eligo.io.files import LOCK, make_folder, write_text
from eligo.io.locks import FileLock
from eligo.io.reading import read_json, reading
from eligo.patches.data.batch import pad_pieces
from eligo.patches.data.feature_store import Features, FeatureStore, Place
from eligo.patches.index.store import model_hash
from eligo.patches.model.encoders import ImageEncoder, TextEncoder, resize
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.chat import plain_text, tokenize
from eligo.train.check import DataCheck
from eligo.train.data import ordered_batches
from eligo.train.processes import Processes
from eligo.train.progress import ProgressBar

Precision = Literal["float16", "float32"]
_FILES = "files.json"
# Shards are multiples of batches: a resumed run computes the same batches.
_IMAGES_PER_SHARD, _IMAGES_AT_ONCE = 128, 32
_TEXTS_PER_SHARD, _TEXTS_AT_ONCE = 2048, 128
_TOKENIZED = 1024  # texts at a time
_SPARE = 100e6  # bytes of the disk that are left free
# Parts of a config that change when a model is saved, but not what it computes.
_UNRELATED = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
_log = logging.getLogger("eligo")


@dataclass(frozen=True)
class CachedCaptions:
    """Stored features of captioned images, in the order in which they were given."""

    given: Sequence[CaptionedImage]
    images: Features
    texts: Features
    image_rows: Sequence[int | None]
    """Row of each image in `images`; None: it cannot be read."""
    mirrored_rows: Sequence[int | None]
    """Row of each mirrored image, for the first images or none."""
    caption_rows: Sequence[Sequence[int]]
    """Rows of each image's captions in `texts`."""
    dense_rows: Sequence[int] | None
    """Row of each image's dense caption in `texts`."""
    pieces: Sequence[list[int]]
    """Word pieces of each row of `texts`."""

    def __getitem__(self, part: slice) -> "CachedCaptions":
        """Return the features of some of the images."""
        dense = None if self.dense_rows is None else self.dense_rows[part]
        rows = self.image_rows[part], self.mirrored_rows[part], self.caption_rows[part], dense
        return CachedCaptions(self.given[part], self.images, self.texts, *rows, self.pieces)


class FeatureCache:
    """A folder of features of the encoders of a model.

    Several processes of a run share the work; other runs wait until it is done.
    """

    def __init__(
        self,
        folder: Path,
        model: RetrievalModel,
        *,
        dtype: Precision = "float16",
        num_workers: int | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.folder, self.model, self.num_workers = folder, model, num_workers
        self.processes = processes
        image, text = model.image_encoder, model.text_encoder
        pixels = {
            "layers": image.layers,
            "image_size": image.image_size,
            "mean": image.mean.flatten().tolist(),
            "std": image.std.flatten().tolist(),
            "resize": "bicubic",
        }
        self.images = _store(folder, "images", image, dtype, pixels)
        self.texts = _store(folder, "texts", text, dtype, {})

    def features(
        self, images: Sequence[CaptionedImage], *, dense: bool, num_mirrored: int = 0
    ) -> CachedCaptions:
        """Return the features of images, captions and (`dense`) dense captions.

        Of the first `num_mirrored` images, also those of the mirrored image.

        What is not stored yet is computed; its size is logged first, and refused if the disk is
        too small.
        """
        captions = [text for image in images for text in image.captions]
        text_rows, pieces = self._tokenized(captions, dense=False)
        dense_rows: list[int] | None = None
        if dense:
            texts = [image.dense or "" for image in images]
            dense_rows, pieces = self._tokenized(texts, dense=True, pieces=pieces)
        text_keys = [_text_key(row) for row in pieces]
        with self._writing():
            image_keys = self._image_keys([image.path for image in images])
            mirrored_keys = [key and _mirrored(key) for key in image_keys[:num_mirrored]]
            sources = [(k, (i.path, False)) for k, i in zip(image_keys, images, strict=True)]
            sources += [(k, (i.path, True)) for k, i in zip(mirrored_keys, images, strict=False)]
            readable = {key: source for key, source in sources if key is not None}
            stored = self._fill(readable, dict(zip(text_keys, pieces, strict=True)))
        image_places, text_places = stored
        kept = [key for key in readable if key in image_places]
        row_of = {key: row for row, key in enumerate(kept)}
        rows = iter(text_rows)
        return CachedCaptions(
            given=images,
            images=Features(self.images, [image_places[key] for key in kept]),
            texts=Features(self.texts, [text_places[key] for key in text_keys]),
            image_rows=[None if key is None else row_of.get(key) for key in image_keys],
            mirrored_rows=[None if key is None else row_of.get(key) for key in mirrored_keys],
            caption_rows=[[next(rows) for _ in image.captions] for image in images],
            dense_rows=dense_rows,
            pieces=pieces,
        )

    # ------------------------------------------------------------------ keys

    def _tokenized(
        self, texts: Sequence[str], *, dense: bool, pieces: list[list[int]] | None = None
    ) -> tuple[list[int], list[list[int]]]:
        """Return the number of each text's word pieces among all different ones."""
        pieces = [] if pieces is None else pieces
        number_of = {tuple(row): number for number, row in enumerate(pieces)}
        encoder, numbers = self.model.text_encoder, []
        options = {"truncation": True, "max_length": encoder.longest(dense=dense)}
        for start in range(0, len(texts), _TOKENIZED):
            plain = [plain_text(encoder.tokenizer, t) for t in texts[start : start + _TOKENIZED]]
            for row in tokenize(encoder.tokenizer, plain, **options)["input_ids"]:
                numbers.append(number_of.setdefault(tuple(row), len(number_of)))
        return numbers, [list(row) for row in number_of]

    def _image_keys(self, paths: Sequence[Path]) -> list[bytes | None]:
        """Return the hash of each file's content; None if it cannot be opened.

        Files whose size and time are those of an earlier run are not read.
        """
        known = _read_files(self.folder / _FILES)
        names = [os.path.abspath(path) for path in paths]  # noqa: PTH100 (links are not followed)
        stamps = {name: _stamp(name) for name in names}
        new = [n for n, stamp in stamps.items() if stamp and known.get(n, ())[:2] != stamp]
        check = DataCheck(self.processes)
        hashed = check.each("image files", new, lambda name: (name, _file_hash(name)))
        known |= {name: [*(stamps[name] or ()), found] for name, found in hashed if found}
        if new and self._is_main:
            write_text(self.folder / _FILES, json.dumps(known) + "\n")
        failed = {name for name, found in hashed if not found}
        return [
            bytes.fromhex(known[name][2]) if stamps[name] and name not in failed else None
            for name in names
        ]

    # ------------------------------------------------------------------ computing

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Wait until no other run writes to the cache."""
        lock = None
        if self._is_main:
            make_folder(self.folder)
            lock = FileLock.acquire(self.folder / LOCK)
            if lock is None:
                _log.info("%s: waiting for another process that writes there", self.folder)
                lock = FileLock.wait_for(self.folder / LOCK)
            for store in (self.images, self.texts):
                store.begin()
        try:
            self._wait()
            yield
            self._wait()
        finally:
            if lock is not None:
                lock.release(remove=True)

    def _fill(
        self, images: Mapping[bytes, "_Source"], texts: Mapping[bytes, list[int]]
    ) -> tuple[dict[bytes, Place], dict[bytes, Place]]:
        """Compute what is missing; return the places of all rows."""
        places = self.images.rows(), self.texts.rows()
        new_images = {key: source for key, source in images.items() if key not in places[0]}
        new_texts = {key: row for key, row in texts.items() if key not in places[1]}
        self._wait()  # all have seen the same shards
        if not new_images and not new_texts:
            return places
        layout = self.model.image_encoder.layout
        sizes = (
            len(new_images) * (layout.num_prefix + layout.num_patches)
            * self.images.bytes_per_token,
            sum(map(len, new_texts.values())) * self.texts.bytes_per_token,
        )  # fmt: skip
        self._check_space(sizes, (len(new_images), len(images)), (len(new_texts), len(texts)))
        with _evaluating(self.model):
            self._encode_images(list(new_images.items()))
            self._encode_texts(sorted(new_texts.items(), key=lambda row: (len(row[1]), row[0])))
        self._wait()
        return self.images.rows(), self.texts.rows()

    def _check_space(
        self, sizes: tuple[int, int], images: tuple[int, int], texts: tuple[int, int]
    ) -> None:
        free, needed = shutil.disk_usage(self.folder).free, sum(sizes)
        if needed + _SPARE > free:
            raise InputError(
                f"{self.folder}: the features need {_gb(needed)}, but {_gb(free)} are free there; "
                "choose a folder on another disk"
            )
        if self._is_main:
            _log.info(
                "%s: computing features of %d of %d images (%s) and %d of %d texts (%s); %s are "
                "free there", self.folder, *images, _gb(sizes[0]), *texts, _gb(sizes[1]), _gb(free),
            )  # fmt: skip

    def _encode_images(self, items: Sequence[tuple[bytes, "_Source"]]) -> None:
        encoder, mine = self.model.image_encoder, self._share(items, _IMAGES_PER_SHARD)
        pictures = _Pictures([source for _, source in mine], encoder.image_size)
        batches = ordered_batches(
            pictures, _IMAGES_AT_ONCE, num_workers=self.num_workers, collate=_as_list
        )

        def encoded() -> Iterator[list[Tensor | None]]:
            for batch in batches:
                good = [image for image in batch if image is not None]
                states = iter(())
                if good:
                    pixels = encoder.normalise(torch.stack(good).to(self.model.device))
                    states = iter(encoder.states(pixels).cpu())
                yield [None if image is None else next(states) for image in batch]

        keys = [key for key, _ in mine]
        self._write("image features", self.images, keys, encoded(), _IMAGES_PER_SHARD)

    def _encode_texts(self, items: Sequence[tuple[bytes, list[int]]]) -> None:
        encoder, mine = self.model.text_encoder, self._share(items, _TEXTS_PER_SHARD)
        pad = encoder.tokenizer.pad_token_id

        def encoded() -> Iterator[list[Tensor | None]]:
            for start in range(0, len(mine), _TEXTS_AT_ONCE):
                rows = [row for _, row in mine[start : start + _TEXTS_AT_ONCE]]
                ids, mask = (part.to(self.model.device) for part in pad_pieces(rows, pad))
                states = encoder.states(ids, mask).cpu()
                yield [part[: len(row)] for part, row in zip(states, rows, strict=True)]

        keys = [key for key, _ in mine]
        self._write("text features", self.texts, keys, encoded(), _TEXTS_PER_SHARD)

    def _write(
        self,
        label: str,
        store: FeatureStore,
        keys: Sequence[bytes],
        batches: Iterator[list[Float[Tensor, "_ width"] | None]],
        shard_size: int,
    ) -> None:
        """Write the states of all keys; those of None are left out."""
        done, states = 0, []
        with ProgressBar(label, len(keys), visible=self._is_main and len(keys) > 0) as bar:
            for batch in batches:
                states += [None if part is None else part.to(store.dtype) for part in batch]
                if len(states) >= shard_size or done + len(states) == len(keys):
                    rows = zip(keys[done : done + len(states)], states, strict=True)
                    whole = [(key, part) for key, part in rows if part is not None]
                    if whole:
                        store.write(*zip(*whole, strict=True))
                    done, states = done + len(states), []
                bar.update(done + len(states))

    def _share(self, items: Sequence[Any], shard_size: int) -> list[Any]:
        """Return this process's part: whole shards."""
        index = 0 if self.processes is None else self.processes.index
        count = 1 if self.processes is None else self.processes.count
        starts = range(index * shard_size, len(items), count * shard_size)
        return [item for start in starts for item in items[start : start + shard_size]]

    @property
    def _is_main(self) -> bool:
        return self.processes is None or self.processes.is_main

    def _wait(self) -> None:
        if self.processes is not None:
            self.processes.wait()


_Source = tuple[Path, bool]  # an image file, and whether to mirror it


class _Pictures:
    """Images in the size of the model; None for one that cannot be read."""

    def __init__(self, sources: Sequence[_Source], side: int) -> None:
        self.sources, self.side = sources, side

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Tensor | None:
        path, mirrored = self.sources[index]
        try:
            image = resize(open_image(path, self.side), self.side)
        except InputError as error:
            _log.warning("skipped: %s", error)
            return None
        return image.flip(-1) if mirrored else image


def _mirrored(key: bytes) -> bytes:
    """Return the key of the mirrored image."""
    return hashlib.sha256(key + b"mirrored").digest()


def _as_list(examples: list[Any]) -> list[Any]:
    return examples


@contextmanager
def _evaluating(model: RetrievalModel) -> Iterator[None]:
    """Evaluation mode and float32, whatever the surrounding code uses."""
    was_training = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            yield
    finally:
        for part, training in was_training:
            part.training = training


def _store(
    root: Path, kind: str, encoder: ImageEncoder | TextEncoder, dtype: str, more: dict[str, Any]
) -> FeatureStore:
    config: Any = encoder.backbone.config
    settings = {k: v for k, v in config.to_dict().items() if k not in _UNRELATED}
    about = {
        "weights": model_hash(encoder.backbone, ""),
        "dtype": dtype,
        **more,
        "config": settings,
    }
    return FeatureStore(root, kind, about, encoder.head.in_features)


def _text_key(pieces: Sequence[int]) -> bytes:
    return hashlib.sha256(np.array(pieces, dtype=np.int32).tobytes()).digest()


def _stamp(path: str) -> list[int] | None:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _file_hash(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _read_files(path: Path) -> dict[str, list[Any]]:
    """Return size, time and hash of files, by path; nothing if the list is damaged."""
    if not path.is_file():
        return {}
    try:
        with reading(path, "sizes, times and hashes of image files"):
            known = read_json(path)
            for _, _, digest in known.values():
                if len(bytes.fromhex(digest)) != 32:
                    raise ValueError(f"got {digest}, no SHA-256")
    except InputError as error:
        _log.warning("%s; the image files are read again", error)
        return {}
    return known


def _gb(size: int) -> str:
    """Return a size in GB.

    >>> _gb(1_234_000_000), _gb(12_000)
    ('1.23 GB', '0.01 GB')
    """
    return f"{max(size, 10_000_000 if size else 0) / 1e9:.2f} GB"
