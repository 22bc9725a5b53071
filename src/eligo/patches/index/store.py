"""The files of an index.

    index.json               manifest: hashes of model and inputs, precision, shards
    shard_00000.safetensors  entries of the first inputs, one tensor for each field
    ids.jsonl                one line for each entry, in order; written last: the index is complete
    skipped.jsonl            inputs that could not be read, and why
    stage1.json              ranks of the best entries in stage 1 (see `search.Calibration`)

A shard has a temporary name until it is complete. An interrupted run continues at the first missing
shard, and the resulting files are identical.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from safetensors import safe_open
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.images import image_files
from eligo.io.files import clear_unfinished, refuse_strange, write_text
from eligo.io.reading import json_lines, numbered_lines, read_object, reading
from eligo.io.tensors import save_tensors

Kind = Literal["images", "texts"]
MANIFEST, IDS, SKIPPED = "index.json", "ids.jsonl", "skipped.jsonl"
_FORMAT = 2
# One key: the order of several would differ from file to file.
_METADATA = "eligo"


@dataclass(frozen=True)
class Manifest:
    """Contents of index.json; deterministic."""

    kind: Kind
    model: str
    """Hash of the model whose vectors are stored."""
    inputs: str
    """Hash of the inputs' ids and stamps, in order."""
    num_inputs: int
    shard_size: int
    """Inputs per shard."""
    dtype: Literal["float16", "float32"]
    """Precision of the stored vectors."""
    source: dict[str, Any]
    """Where the inputs came from."""
    format: int = _FORMAT

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return -(-self.num_inputs // self.shard_size)

    def inputs_of(self, shard: int) -> range:
        """Return the inputs of a shard, unreadable ones included."""
        start = shard * self.shard_size
        return range(start, min(start + self.shard_size, self.num_inputs))


def model_hash(model: nn.Module, settings: str) -> str:
    """Return a hash of weights and settings."""
    digest = hashlib.sha256(settings.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def inputs_hash(inputs: Iterable[tuple[str, str]]) -> str:
    """Return a hash of ids and stamps."""
    digest = hashlib.sha256()
    for each in inputs:
        digest.update("\0".join((*each, "")).encode())
    return digest.hexdigest()[:32]


def begin(folder: Path, manifest: Manifest, ids: Sequence[str]) -> list[int]:
    """Start or resume an index; return the numbers of the missing shards."""
    refuse_strange(folder, marker=MANIFEST)
    clear_unfinished(folder)
    if not (folder / MANIFEST).exists():
        write_text(folder / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
    elif (before := read_manifest(folder)) != manifest:
        raise InputError(
            f"{folder}: holds an index {_difference(folder, before, manifest, ids)}; give another "
            "--out, or remove this one"
        )
    return [n for n in range(manifest.num_shards) if not shard_path(folder, n).exists()]


def _difference(folder: Path, before: Manifest, now: Manifest, ids: Sequence[str]) -> str:
    """Return how an existing index differs from the new one."""
    stored = asdict(before)
    for name, value in asdict(now).items():
        if name not in ("inputs", "num_inputs") and stored[name] != value:
            return f"with {name} {stored[name]!r}, not {value!r}"
    if not (folder / IDS).exists():
        return f"of other {now.kind} than those there are now"
    old, new = set(), set(ids)
    for path in (folder / IDS, folder / SKIPPED):
        with reading(path, "a JSON object with an id on each line: remove the index"):
            old |= {str(row["id"]) for _, row in json_lines(path)}
    if old == new:
        return f"of other {now.kind}: some have changed since"
    return f"of other {now.kind}: {len(new - old)} new and {len(old - new)} gone since"


def write_shard(
    folder: Path,
    number: int,
    tensors: dict[str, Tensor],
    entries: Sequence[dict[str, Any]],
    skipped: Sequence[dict[str, Any]],
) -> None:
    """Write one shard atomically."""
    listing = json.dumps({"entries": list(entries), "skipped": list(skipped)}, ensure_ascii=False)
    save_tensors(shard_path(folder, number), tensors, {_METADATA: listing})


def finish(folder: Path, manifest: Manifest) -> tuple[int, list[dict[str, Any]]]:
    """Write ids.jsonl and skipped.jsonl; return the number of entries, and the skipped inputs."""
    entries, skipped = [], []
    for number in range(manifest.num_shards):
        listing = Shard(shard_path(folder, number)).listing
        entries += listing["entries"]
        skipped += listing["skipped"]
    write_text(folder / SKIPPED, _lines(skipped))
    write_text(folder / IDS, _lines(entries))
    return len(entries), skipped


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"shard_{number:05d}.safetensors"


def shards_in(folder: Path) -> list[Path]:
    """Return the paths of all complete shards of a folder."""
    return sorted(folder.glob("shard_*.safetensors"))


class Shard:
    """One file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._reading():
            self._file = safe_open(path, "pt")
            self.names = list(self._file.keys())
            len(self)

    @property
    def listing(self) -> dict[str, Any]:
        """Entries and skipped inputs, stored beside the tensors."""
        with self._reading():
            return json.loads((self._file.metadata() or {})[_METADATA])

    def _reading(self) -> AbstractContextManager[None]:
        fix = "remove it and run the same `eligo patches index` again"
        return reading(self.path, f"a shard of an index: {fix}")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, as a view of the file."""
        return {name: self._file.get_tensor(name) for name in self.names}

    def __len__(self) -> int:
        return self._file.get_slice("direction").get_shape()[0]


class IndexFolder:
    """A complete index: entries 0, 1, 2, ... in the order of `ids.jsonl`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        if not (self.folder / IDS).exists():
            count = len(shards_in(self.folder))
            raise InputError(
                f"{self.folder}: is not finished ({count} of {self.manifest.num_shards} shards); "
                "run the same `eligo patches index` again to continue it"
            )
        paths = (shard_path(self.folder, n) for n in range(self.manifest.num_shards))
        self.shards = [Shard(path) for path in paths]
        sizes = torch.tensor([len(shard) for shard in self.shards])
        self.ends: Int[Tensor, " shards"] = sizes.cumsum(0)
        self.starts: Int[Tensor, " shards"] = self.ends - sizes

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """Id of each entry and, in a text index, its text."""
        path = self.folder / IDS
        with reading(path, "a JSON object with an id on each line: index again"):
            rows = [json.loads(line) for _, line in numbered_lines(path)]
            if [row for row in rows if not isinstance(row["id"], str)] or len(rows) != len(self):
                raise ValueError(f"it has {len(rows)} lines for {len(self)} entries")
        return rows

    def gather(
        self, rows: Int[Tensor, " rows"], pick: Callable[[dict[str, Tensor], Tensor], Any]
    ) -> list[Any]:
        """Return `pick(tensors, rows inside the shard)` for every shard with some of the rows."""
        owners = torch.searchsorted(self.ends, rows, right=True)
        picked = []
        for number in owners.unique_consecutive().tolist():
            inside = rows[owners == number] - self.starts[number]
            picked.append(pick(self.shards[number].tensors, inside))
        return picked

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
        manifest = Manifest(**fields)
        if manifest.num_inputs < 0 or manifest.shard_size < 1:
            raise ValueError(f"{manifest.num_inputs} inputs in shards of {manifest.shard_size}")
    return manifest
