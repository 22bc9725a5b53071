"""Sources of an index: image files, texts of a file, generated scenes.

A source lists ids and loads inputs by place (index in that list); unreadable ones are marked.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eligo.errors import InputError
from eligo.images import SUFFIXES, image_files, open_image, printable_name, upright_size
from eligo.io.json_lines import read_json_lines
from eligo.io.reading import numbered_lines
from eligo.patches.data.readers import TextRow
from eligo.patches.index.store import Kind
from eligo.train.check import DataCheck, listed

_log = logging.getLogger("eligo.patches")


class Loaded(NamedTuple):
    """One input: a picture (with its dense caption, if images have them) or a text."""

    value: Any
    dense: str | None = None


class Unreadable(NamedTuple):
    """Placeholder of an input that cannot be read."""

    why: str


class Source(ABC):
    """Inputs of an index."""

    kind: Kind = "images"
    ids: Sequence[str]
    """A name for every input, in order."""

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Origin of the inputs, stored with the index."""

    @abstractmethod
    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Load the inputs at these places, in order."""

    def stamp(self, place: int) -> str:
        """Return a cheap fingerprint that changes if the input changes."""
        return self.ids[place]

    def entry(self, place: int) -> dict[str, Any]:
        """Return the input's line in `ids.jsonl`."""
        return {"id": self.ids[place]}


@dataclass(frozen=True)
class ImageFiles(Source):
    """All image files below a folder, by name."""

    root: Path
    ids: Sequence[str]
    dense: Mapping[str, str] | None = None
    """Dense caption of each id, for a model that was trained with them."""
    skipped: Sequence[str] = ()
    """Printable names of files whose names are not UTF-8, which an index cannot store."""
    side: int | None = None
    """Pixels per side of the model's images; see `open_image`."""

    @classmethod
    def under(cls, root: Path, dense: Mapping[str, str] | None = None) -> "ImageFiles":
        """Find every image file below a folder; ids are relative paths."""
        if not root.is_dir():
            raise InputError(f"{root}: is no folder; expected a folder of images")
        files = sorted(path.relative_to(root).as_posix() for path in image_files(root))
        if not files:
            raise InputError(f"{root}: holds no images; expected files ending in {SUFFIXES}")
        names = [name for name in files if _is_text(name)]
        skipped = [printable_name(name) for name in files if not _is_text(name)]
        if not names:
            raise InputError(
                f"{printable_name(root)}: holds no image whose name is UTF-8, only "
                f"{skipped[0]!r}; rename the files"
            )
        missing = [] if dense is None else [name for name in names if name not in dense]
        if missing:
            raise InputError(
                f"dense captions: {len(missing)} images have none, the first is "
                f"{missing[0]!r}; expected one for every image"
            )
        return cls(root, names, dense, skipped)

    def check(self) -> list[str]:
        """Read every file; return the problems. Raise if no file can be read."""
        check = DataCheck()
        readable = check.each("images", self.ids, lambda name: upright_size(self.root / name))
        if not readable:
            raise InputError(
                f"{self.root}: none of {len(self.ids)} images can be read; {listed(check.problems)}"
            )
        return check.problems

    @property
    def about(self) -> dict[str, Any]:
        """The folder."""
        return {"folder": printable_name(self.root), "dense": self.dense is not None}

    def stamp(self, place: int) -> str:
        """Return size in bytes and dense caption."""
        name = self.ids[place]
        dense = "" if self.dense is None else self.dense[name]
        return f"{(self.root / name).stat().st_size} {dense}"

    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Decode the files at these places."""
        return [self._open(self.ids[place]) for place in places]

    def _open(self, name: str) -> Loaded | Unreadable:
        try:
            picture = open_image(self.root / name, self.side)
        except InputError as error:
            return Unreadable(str(error))
        return Loaded(picture, None if self.dense is None else self.dense[name])


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

    def stamp(self, place: int) -> str:
        """Return the text itself."""
        return self.texts[place]

    def load(self, places: Sequence[int]) -> list[Loaded | Unreadable]:
        """Return the texts at these places."""
        return [Loaded(self.texts[place]) for place in places]

    def entry(self, place: int) -> dict[str, Any]:
        """Return id (or line number) and text."""
        return {"id": self.ids[place], "text": self.texts[place]}


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
        if not self.dense:
            return [Loaded(picture) for picture in pictures]
        texts = draw_dense_captions(graph)
        return [Loaded(picture, texts.text(place)) for place, picture in enumerate(pictures)]


def scene_captions(count: int) -> list[str]:
    """Return captions of the validation split, as queries to measure stage 1."""
    from eligo.scenes import SceneConfig, draw_captions, draw_scenes

    drawn = draw_captions(draw_scenes(SceneConfig(), "validation", range(count)), 1)
    return [drawn.text(scene, 0) for scene in range(count)]


def _is_text(name: str) -> bool:
    """Whether a file name is UTF-8: undecodable bytes are lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
