"""The files of an index.

    index.json               model, precision and source; once complete, the shards and a hash of
                             ids.jsonl
    shard_00000.safetensors  entries, one tensor for each field, with the list of their inputs
    part_00001_00000...      finished batches of the shard that is being made
    ids.jsonl                one line for each entry, in order; null: its input is gone
    skipped.jsonl            inputs that could not be read, and why
    stage1.json              ranks of the best entries in stage 1 (see `search.Calibration`)

A file has a temporary name until it is complete. Shards are never changed and list their own
inputs, so that an interrupted run continues after its last batch, and the lists can be made again
from the shards. index.json is written last: until then the index is the one before.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from safetensors import safe_open
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.images import image_files
from eligo.io.files import clear_unfinished, refuse_strange, remove_file, write_text
from eligo.io.reading import parse_json, read_object, reading
from eligo.io.tensors import save_tensors

Kind = Literal["images", "texts"]
Line = dict[str, Any]
"""An input: id, stamp and content (see `sources`); `text` of a text, `why` if it was skipped."""
MANIFEST, IDS, SKIPPED = "index.json", "ids.jsonl", "skipped.jsonl"
CALIBRATION, GRAPH = "stage1.json", "stage1.faiss"
_FORMAT = 3
# One key: the order of several would differ from file to file.
_METADATA = "eligo"
_AGAIN = "run the same `eligo patches index` again"


@dataclass(frozen=True)
class ShardInfo:
    """What index.json says of a shard."""

    name: str
    rows: int
    inputs: str
    """Hash of its list of inputs."""


@dataclass(frozen=True)
class Manifest:
    """Contents of index.json; deterministic."""

    kind: Kind
    model: str
    """Hash of the model whose vectors are stored."""
    dtype: Literal["float16", "float32"]
    """Precision of the stored vectors."""
    source: dict[str, Any]
    """Where the inputs came from."""
    format: int = _FORMAT
    shards: tuple[ShardInfo, ...] | None = None
    """None: the first run has not finished."""
    ids: str = ""
    """Hash of ids.jsonl."""


@dataclass(frozen=True)
class Stored:
    """A shard's inputs: those of its rows (None as id: gone), and those that were skipped."""

    shard: "Shard"
    entries: list[Line]
    skipped: list[Line]


def model_hash(model: nn.Module, settings: str) -> str:
    """Return a hash of weights and settings."""
    digest = hashlib.sha256(settings.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def text_hash(text: str) -> str:
    """Return a hash of a text.

    >>> len(text_hash("a red ball"))
    32
    """
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def begin(folder: Path, manifest: Manifest) -> list[Stored]:
    """Start, resume or update an index; return what is there."""
    refuse_strange(folder, marker=MANIFEST)
    clear_unfinished(folder)
    if not (folder / MANIFEST).exists():
        write_manifest(folder, manifest)
        return []
    before = read_manifest(folder)
    for name in ("kind", "model", "dtype", "source"):
        old, new = getattr(before, name), getattr(manifest, name)
        if old != new and not (name == "source" and _has_moved(old, new)):
            raise InputError(
                f"{folder}: holds an index with {name} {old!r}, not {new!r}; give another --out, "
                "or remove this one"
            )
    return _stored(folder, before)


def _has_moved(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two sources differ only in a folder that is not there any more."""
    return old | {"folder": None} == new | {"folder": None} and not Path(old["folder"]).exists()


def _stored(folder: Path, manifest: Manifest) -> list[Stored]:
    """Return the shards there are, with the lists of the last complete run where they apply."""
    listed = {info.name: info for info in manifest.shards or ()}
    lines = _lines_of(folder, manifest) if _is_whole(folder, manifest) else None
    first, stored = 0, []
    for path in shards_in(folder):
        shard = Shard(path)
        shard.check(manifest.model, listed.get(path.name))
        listing = shard.listing
        entries: list[Line] = listing["entries"]
        if path.name in listed and lines is not None:
            latest = lines[first : first + len(entries)]
            pairs = zip(entries, map(json.loads, latest), strict=True)
            entries = [{**made, **(now or {"id": None})} for made, now in pairs]
        if path.name in listed:
            first += listed[path.name].rows
            listing["skipped"] = []  # tried again: there may be a plug-in by now
        stored.append(Stored(shard, entries, listing["skipped"]))
    return stored


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether the lists of the last complete run, and all its shards, are there."""
    if manifest.shards is None:
        return False
    if not all((folder / info.name).is_file() for info in manifest.shards):
        return False
    return text_hash(_read_ids(folder)) == manifest.ids


def _read_ids(folder: Path) -> str:
    """Return ids.jsonl; its hash tells whether it is whole."""
    path = folder / IDS
    with reading(path, "a readable file"):
        return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""


def _lines_of(folder: Path, manifest: Manifest) -> list[str]:
    """Return the lines of ids.jsonl; raise if they are not those of this index."""
    text = _read_ids(folder)
    if text_hash(text) != manifest.ids:
        raise InputError(
            f"{folder / IDS}: is damaged, or of another index; {_AGAIN} to write it anew"
        )
    return text.split("\n")[:-1]


def write_shard(
    path: Path,
    model: str,
    tensors: dict[str, Tensor],
    entries: Sequence[Line],
    skipped: Sequence[Line],
) -> None:
    """Write one shard, or a part of one, atomically."""
    listing = {"model": model, "entries": list(entries), "skipped": list(skipped)}
    save_tensors(path, tensors, {_METADATA: json.dumps(listing, ensure_ascii=False)})


def finish(
    folder: Path,
    manifest: Manifest,
    shards: Sequence[tuple["Shard", Sequence[Line | None]]],
    skipped: Sequence[Line],
) -> None:
    """Write the lists of an index: a line for each row of each shard, None if its input is gone.

    Shards without a row that is in use, and measurements of the index before, are removed.
    """
    used = [(shard, lines) for shard, lines in shards if any(line is not None for line in lines)]
    text = "".join(_line(line) for _, lines in used for line in lines)
    infos = tuple(ShardInfo(s.path.name, len(lines), s.inputs) for s, lines in used)
    complete = replace(manifest, shards=infos, ids=text_hash(text))
    before = read_manifest(folder)
    write_text(folder / SKIPPED, "".join(map(_line, skipped)))
    if complete != before or not _is_whole(folder, complete):
        for name in (CALIBRATION, GRAPH):
            remove_file(folder / name)
        write_text(folder / IDS, text)
        write_manifest(folder, complete)
    keep = {info.name for info in infos}
    for path in (*shards_in(folder), *parts_in(folder)):
        if path.name not in keep:
            remove_file(path)


def _line(value: Line | None) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write index.json."""
    write_text(folder / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"shard_{number:05d}.safetensors"


def shard_number(path: Path) -> int:
    """Return the number of a shard.

    >>> shard_number(shard_path(Path("index"), 12))
    12
    """
    return int(re.findall(r"\d+", path.name)[0])


def part_path(folder: Path, number: int, part: int) -> Path:
    """Return the path of a part of a shard."""
    return folder / f"part_{number:05d}_{part:05d}.safetensors"


def shards_in(folder: Path) -> list[Path]:
    """Return the paths of all complete shards of a folder."""
    return sorted(folder.glob("shard_*.safetensors"), key=shard_number)


def parts_in(folder: Path, number: int | None = None) -> list[Path]:
    """Return the paths of the parts of a shard (None: of all), in order."""
    return sorted(folder.glob(f"part_{'*' if number is None else f'{number:05d}_*'}.safetensors"))


class Shard:
    """One file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._reading():
            self._file = safe_open(path, "pt")
            self.names = list(self._file.keys())
            self._listing = (self._file.metadata() or {})[_METADATA]
            len(self)

    @property
    def listing(self) -> dict[str, Any]:
        """Model, entries and skipped inputs, stored beside the tensors."""
        with self._reading():
            return json.loads(self._listing)

    @property
    def inputs(self) -> str:
        """Hash of the listing."""
        return text_hash(self._listing)

    def check(self, model: str, info: ShardInfo | None) -> None:
        """Raise if this is not a shard of an index of this model, or not the one it lists."""
        with self._reading():
            if info is not None and (info.rows, info.inputs) != (len(self), self.inputs):
                raise ValueError("it is not the file that this index was made with")
            if info is None and self.listing["model"] != model:
                raise ValueError("it is of an index of another model")

    def _reading(self) -> AbstractContextManager[None]:
        return reading(self.path, f"a shard of this index: remove it and {_AGAIN}")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, as a view of the file."""
        return {name: self._file.get_tensor(name) for name in self.names}

    def __len__(self) -> int:
        return self._file.get_slice("direction").get_shape()[0]


class IndexFolder:
    """A complete index: rows 0, 1, 2, ... in the order of `ids.jsonl`; some may be gone."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        if self.manifest.shards is None:
            raise InputError(
                f"{self.folder}: is not finished ({len(shards_in(self.folder))} shards so far); "
                f"{_AGAIN} to continue it"
            )
        missing = [s.name for s in self.manifest.shards if not (self.folder / s.name).is_file()]
        if missing:
            raise InputError(f"{self.folder / missing[0]}: is missing; {_AGAIN} to make it anew")
        self.shards = [Shard(self.folder / info.name) for info in self.manifest.shards]
        for shard, info in zip(self.shards, self.manifest.shards, strict=True):
            shard.check(self.manifest.model, info)
        sizes = torch.tensor([len(shard) for shard in self.shards])
        self.ends: Int[Tensor, " shards"] = sizes.cumsum(0)
        self.starts: Int[Tensor, " shards"] = self.ends - sizes
        self._lines = _lines_of(self.folder, self.manifest)
        self.in_use: Bool[Tensor, " rows"] = torch.tensor(
            [line != "null" for line in self._lines], dtype=torch.bool
        )
        """Rows whose input is not gone."""
        self.rows: Int[Tensor, " entries"] = self.in_use.nonzero().flatten()

    def __len__(self) -> int:
        """Return the number of entries that are not gone."""
        return len(self.rows)

    def entry(self, row: int) -> Line:
        """Return id and, in a text index, text of a row."""
        path = self.folder / IDS
        with reading(path, "a JSON object with an id on each line: index again"):
            line = parse_json(self._lines[row], path, row + 1)
            return {name: line[name] for name in ("id", "text") if name in line}

    @property
    def entries(self) -> list[Line]:
        """Id and text of all entries that are not gone."""
        return [self.entry(row) for row in self.rows.tolist()]

    def rows_of(self, shard: int) -> Int[Tensor, " rows"]:
        """Return the rows of a shard that are in use, counted inside the shard."""
        start, end = int(self.starts[shard]), int(self.ends[shard])
        return self.in_use[start:end].nonzero().flatten()

    def gather(
        self, rows: Int[Tensor, " rows"], pick: Callable[[dict[str, Tensor], Tensor], Any]
    ) -> list[Any]:
        """Return `pick(tensors, rows inside the shard)` for every shard with some of the rows.

        The rows ascend.
        """
        owners, counts = torch.searchsorted(self.ends, rows, right=True).unique_consecutive(
            return_counts=True
        )
        parts = zip(owners.tolist(), rows.split(counts.tolist()), strict=True)
        return [
            pick(self.shards[number].tensors, part - self.starts[number]) for number, part in parts
        ]

    def check_model(self, model: str) -> None:
        """Raise for a model other than the one that the index was built with."""
        if model != self.manifest.model:
            raise InputError(
                f"{self.folder}: was made with another model (hash {self.manifest.model}, this one "
                f"has {model}); search it with its own --model, or index again"
            )


def read_manifest(folder: Path) -> Manifest:
    """Read and check index.json."""
    path = folder / MANIFEST
    if not path.is_file():
        images = folder if any(image_files(folder)) else "IMAGES"
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        out = folder if is_free else folder.parent / f"{folder.resolve().name}.index"
        raise InputError(
            f"{folder}: is no index (no {MANIFEST}); make one with `eligo patches index {images} "
            f"--out {out}`"
        )
    fields = read_object(path, "`eligo patches index`")
    if fields.get("format") != _FORMAT:
        raise InputError(
            f"{path}: is of another format, expected {_FORMAT}; remove {folder} and index again"
        )
    with reading(path, f"the manifest of an index: remove {folder} and index again"):
        shards: Iterable[Any] | None = fields.pop("shards")
        if shards is not None:
            shards = tuple(ShardInfo(**info) for info in shards)
        manifest = Manifest(**fields, shards=shards)
        for info in shards or ():
            if shard_path(folder, shard_number(Path(info.name))).name != info.name:
                raise ValueError(f"{info.name!r} is no name of a shard")
    return manifest
