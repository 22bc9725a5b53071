"""Sources of an index: image files, texts of a file, generated scenes.

A source lists ids and loads inputs by place (index in that list); unreadable ones are marked. An
input is recognised in an index by its content. Reading every photo for that would take long, so
that each also has a stamp: if id and stamp are those of the last run, its content is not read.
"""

import hashlib
import logging
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eligo.errors import InputError
from eligo.images import (
    HEIF,
    SUFFIXES,
    decoding_bytes,
    image_files,
    more_suffixes,
    open_image,
    printable_name,
    unsupported_files,
)
from eligo.io.json_lines import read_json_lines
from eligo.io.reading import numbered_lines
from eligo.patches.data.readers import TextRow
from eligo.patches.index.store import Kind, Line, text_hash
from eligo.train.data import ordered_batches

_log = logging.getLogger("eligo.patches")
_BAD_NAME = "its name is not UTF-8; rename the file"
_NO_DECODER = "this format cannot be read; save it as JPEG"
_NO_HEIF = "HEIC needs pillow-heif, which is not installed: pip install 'eligo[heic]'"


class Loaded(NamedTuple):
    """One input: a picture (with its dense caption, if images have them) or a text."""

    value: Any
    dense: str | None = None
    content: str = ""
    """Hash of what it was read from."""


class Unreadable(NamedTuple):
    """Placeholder of an input that cannot be read."""

    why: str
    content: str = ""


Prepare = Callable[[Any], Any]
"""What is done to every picture in the process that decodes it."""
Turn = AbstractContextManager[Any]
_LARGE_BYTES, _MOST_BYTES = 1 << 27, 3 << 28  # of memory, to decode a file


class Source(ABC):
    """Inputs of an index."""

    kind: Kind = "images"
    ids: Sequence[str]
    """A name for every input, in order."""
    skipped: Sequence[Line] = ()
    """Inputs that are known to be unreadable: id and why."""

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Origin of the inputs, stored with the index."""

    @abstractmethod
    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Load the inputs at these places, in order."""

    def batches(
        self,
        places: Sequence[int],
        batch_size: int,
        prepare: Prepare,  # noqa: ARG002
        num_workers: int | None,  # noqa: ARG002
    ) -> Iterator[list[Loaded | Unreadable]]:
        """Load inputs in order; image files are decoded and prepared in worker processes."""
        for start in range(0, len(places), batch_size):
            yield self.load(places[start : start + batch_size])

    def stamp(self, place: int) -> str:
        """Return a cheap fingerprint; inputs of equal content have the same first word."""
        return self.content(place)

    def content(self, place: int) -> str:
        """Return a hash of all that the entry is made from."""
        return self.ids[place]

    def entry(self, place: int) -> Line:
        """Return the input's line in `ids.jsonl`, without its content."""
        return {"id": self.ids[place], "stamp": self.stamp(place)}


@dataclass(frozen=True)
class ImageFiles(Source):
    """All image files below a folder, by name."""

    root: Path
    ids: Sequence[str]
    stamps: Sequence[str]
    """Size and times of each file: no program can change a file and keep all three."""
    dense: Mapping[str, str] | None = None
    """Dense caption of each id, for a model that was trained with them."""
    skipped: Sequence[Line] = ()
    """Files with names that are not UTF-8, or in formats without a decoder."""
    side: int | None = None
    """Pixels per side of the model's images; see `open_image`."""

    @classmethod
    def under(cls, root: Path, dense: Mapping[str, str] | None = None) -> "ImageFiles":
        """Find every image file below a folder; ids are relative paths."""
        if not root.is_dir():
            raise InputError(f"{root}: is no folder; expected a folder of images")
        suffixes = (*SUFFIXES, *more_suffixes())
        files = dict(_stamped(root, image_files(root, suffixes)))
        others = sorted(unsupported_files(root, suffixes))
        skipped = [
            {"id": printable_name(name), "why": _BAD_NAME}
            for name in sorted(files)
            if not _is_text(name)
        ]
        skipped += [
            {
                "id": printable_name(path.relative_to(root)),
                "why": _NO_HEIF if path.suffix.lower() in HEIF else _NO_DECODER,
            }
            for path in others
        ]
        names = sorted(filter(_is_text, files))
        if not names:
            why = f", only {skipped[0]['id']!r}: {skipped[0]['why']}" if skipped else ""
            raise InputError(
                f"{printable_name(root)}: holds no images that can be read{why}; expected files "
                f"ending in {SUFFIXES}"
            )
        missing = [] if dense is None else [name for name in names if name not in dense]
        if missing:
            raise InputError(
                f"dense captions: {len(missing)} images have none, the first is "
                f"{missing[0]!r}; expected one for every image"
            )
        return cls(root, names, [files[name] for name in names], dense, skipped)

    @property
    def about(self) -> dict[str, Any]:
        """The folder."""
        return {"folder": printable_name(self.root.resolve()), "dense": self.dense is not None}

    def stamp(self, place: int) -> str:
        """Return size and times of the file, and a hash of its dense caption."""
        return self.stamps[place] + self._dense_hash(place)

    def content(self, place: int) -> str:
        """Return a hash of the file and its dense caption."""
        with (self.root / self.ids[place]).open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return digest.hexdigest() + self._dense_hash(place)

    def _dense_hash(self, place: int) -> str:
        return "" if self.dense is None else f" {text_hash(self.dense[self.ids[place]])}"

    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Decode the files at these places."""
        return [self._open(place) for place in places]

    def batches(
        self, places: Sequence[int], batch_size: int, prepare: Prepare, num_workers: int | None
    ) -> Iterator[list[Loaded | Unreadable]]:
        """Decode, prepare and hash files in worker processes (None: one for each free core)."""
        files = _Files(self, places, prepare, multiprocessing.Lock())
        return ordered_batches(files, batch_size, num_workers=num_workers, collate=list)

    def _open(
        self, place: int, prepare: Prepare | None = None, turn: Turn | None = None
    ) -> Loaded | Unreadable:
        name, content = self.ids[place], ""
        try:
            content = self.content(place)
            size = decoding_bytes(self.root / name, self.side)
            if size > _MOST_BYTES:
                raise InputError(
                    f"{printable_name(self.root / name)}: decoding it takes {size >> 20} MiB of "
                    f"memory, expected at most {_MOST_BYTES >> 20}; scale it down, or save it as "
                    "JPEG"
                )
            with turn if turn is not None and size > _LARGE_BYTES else nullcontext():
                picture = open_image(self.root / name, self.side)
            value = picture if prepare is None else prepare(picture)
        except InputError as error:
            return Unreadable(str(error), content)
        except OSError as error:  # gone since it was listed, or not ours to read
            return Unreadable(f"{self.root / name}: cannot be read ({error.strerror})")
        return Loaded(value, None if self.dense is None else self.dense[name], content)


@dataclass(frozen=True)
class _Files:
    """The inputs at some places, for a data loader."""

    source: ImageFiles
    places: Sequence[int]
    prepare: Prepare
    turn: Turn
    """Held while a large file is decoded, so that all processes together need bounded memory."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Loaded | Unreadable:
        return self.source._open(self.places[index], self.prepare, self.turn)


@dataclass(frozen=True)
class TextLines(Source):
    """Texts of a file: one per line, or JSON lines with `text` and perhaps `id`."""

    path: Path
    ids: Sequence[str]
    texts: Sequence[str]
    kind: Kind = "texts"

    @classmethod
    def of(cls, path: Path) -> "TextLines":
        """Read a `.jsonl` or plain text file; blank lines are skipped."""
        if path.suffix == ".jsonl":
            rows = read_json_lines(path, TextRow)
            pairs = [
                (str(number if row.id in (None, "") else row.id), row.text.strip())
                for number, row in rows
            ]
        else:
            pairs = [(str(number), line.strip()) for number, line in numbered_lines(path)]
        if not pairs:
            raise InputError(f"{path}: holds no texts; expected one per line")
        counts = Counter(name for name, _ in pairs)
        if repeated := [name for name, count in counts.items() if count > 1]:
            _log.warning(
                "%s: %d ids occur more than once, such as %r, and are ambiguous in search results",
                path, len(repeated), repeated[0],
            )  # fmt: skip
        return cls(path, [name for name, _ in pairs], [text for _, text in pairs])

    @property
    def about(self) -> dict[str, Any]:
        """The file."""
        return {"file": str(self.path)}

    def content(self, place: int) -> str:
        """Return a hash of the text."""
        return text_hash(self.texts[place])

    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Return the texts at these places."""
        return [Loaded(self.texts[place], None, self.content(place)) for place in places]

    def entry(self, place: int) -> Line:
        """Return id (or line number), stamp and text."""
        return super().entry(place) | {"text": self.texts[place]}


@dataclass(frozen=True)
class ScenePictures(Source):
    """Generated scenes, the same on every machine."""

    ids: Sequence[str]
    size: int
    """Pixels per side."""
    dense: bool = False

    @classmethod
    def first(cls, count: int, size: int, *, dense: bool = False) -> "ScenePictures":
        """Return the first `count` scenes of the test split."""
        from eligo.scenes.dataset import scene_id

        if count < 1:
            raise InputError(f"scenes: got {count}, expected at least 1")
        return cls([scene_id("test", place) for place in range(count)], size, dense)

    @property
    def about(self) -> dict[str, Any]:
        """Split and size."""
        return {"scenes": "test", "size": self.size, "dense": self.dense}

    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Render the scenes at these places."""
        import torch

        from eligo.scenes import SceneConfig, draw_scenes, render
        from eligo.scenes.captions import draw_dense_captions

        config = SceneConfig(height=self.size, width=self.size)
        graph = draw_scenes(config, "test", torch.tensor(list(places)))
        pictures = render(graph).rgb
        dense = draw_dense_captions(graph) if self.dense else None
        return [
            Loaded(picture, None if dense is None else dense.text(n), self.content(place))
            for n, (place, picture) in enumerate(zip(places, pictures, strict=True))
        ]


def scene_captions(count: int) -> list[str]:
    """Return captions of the validation split, as queries to measure stage 1."""
    from eligo.scenes import SceneConfig, draw_captions, draw_scenes

    drawn = draw_captions(draw_scenes(SceneConfig(), "validation", range(count)), 1)
    return [drawn.text(scene, 0) for scene in range(count)]


def _stamped(root: Path, files: Iterator[Path]) -> Iterator[tuple[str, str]]:
    """Yield the relative path of each file, and its size and times."""
    for path in files:
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:  # gone by now
            continue
        stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        yield path.relative_to(root).as_posix(), stamp


def _is_text(name: str) -> bool:
    """Whether a file name is UTF-8: undecodable bytes are lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
