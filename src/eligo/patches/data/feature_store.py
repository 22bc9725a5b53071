"""States of a frozen encoder on disk, in shards that are complete or absent.

    <folder>/encoder.json            what the states depend on
    <folder>/<hash>.safetensors      states (tokens, width), lengths (rows), keys (rows, 32)

A row holds the states of one image or text, whose key is the SHA-256 of its content. A shard is
named after a hash of its keys and lengths. Rows are found by key: shards need no order, and a lost
shard is only computed again.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from eligo.errors import InputError
from eligo.io.files import clear_unfinished, remove_file, write_text
from eligo.io.reading import reading
from eligo.io.tensors import save_tensors

_log = logging.getLogger(__name__)
_METADATA = "eligo"


class Place(NamedTuple):
    """Where the states of a row are: in a shard, from token `start` on."""

    shard: str
    start: int
    length: int


class FeatureStore:
    """States of one encoder. `settings` is all that they depend on; a hash of it is the key."""

    def __init__(self, root: Path, kind: str, settings: dict[str, Any], width: int) -> None:
        self.settings, self.width = settings, width
        self.dtype: torch.dtype = getattr(torch, settings["dtype"])
        text = json.dumps(settings, indent=2, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.folder = root / f"{kind}-{self.key[:16]}"
        self._about = text + "\n"

    @property
    def bytes_per_token(self) -> int:
        """Size of the states of one token."""
        return self.width * self.dtype.itemsize

    def begin(self) -> None:
        """Remove what killed processes left unfinished; only the writer may do this."""
        if not (self.folder / "encoder.json").is_file():
            write_text(self.folder / "encoder.json", self._about)
        clear_unfinished(self.folder)

    def rows(self) -> dict[bytes, Place]:
        """Return the place of every stored row; a damaged shard is removed, with a warning."""
        places: dict[bytes, Place] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                places |= self._rows_of(path)
            except InputError as error:
                _log.warning("%s; its features are computed again", error)
                remove_file(path)
        return places

    def _rows_of(self, path: Path) -> dict[bytes, Place]:
        with reading(path, "a shard of features of this encoder"), safe_open(path, "pt") as file:
            if (file.metadata() or {}).get(_METADATA) != self.key:
                raise ValueError("it belongs to another encoder")
            keys, lengths = file.get_tensor("keys"), file.get_tensor("lengths")
            states = file.get_slice("states")
            if path.stem != _name(keys, lengths):
                raise ValueError("it holds other rows than its name says")
            expected = [int(lengths.sum()), self.width]
            dtype = {"F16": torch.float16, "F32": torch.float32}.get(states.get_dtype())
            if list(states.get_shape()) != expected or dtype is not self.dtype:
                raise ValueError(f"got states of shape {states.get_shape()}, expected {expected}")
        places, start = {}, 0
        for key, length in zip(keys.numpy(), lengths.tolist(), strict=True):
            places[key.tobytes()] = Place(path.name, start, length)
            start += length
        return places

    def write(self, keys: Sequence[bytes], states: Sequence[Float[Tensor, "_ width"]]) -> None:
        """Write one shard: a row for each key."""
        stored = torch.cat(list(states)).to(self.dtype)
        if not bool(stored.isfinite().all()):
            raise InputError(
                f"{self.folder}: the encoder's features are not finite in {self.settings['dtype']}"
                + ("; use --data.cache_dtype float32" if self.dtype is torch.float16 else "")
            )
        rows = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(len(keys), -1)
        lengths = torch.tensor([len(part) for part in states])
        path = self.folder / f"{_name(rows, lengths)}.safetensors"
        tensors = {"keys": rows, "lengths": lengths, "states": stored}
        save_tensors(path, tensors, {_METADATA: self.key})


def _name(keys: Tensor, lengths: Tensor) -> str:
    content = keys.numpy().tobytes() + lengths.numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:24]


class Features:
    """Rows of a store, numbered, mapped into memory or (`to`) on a device.

    A copy in another process opens the files again.
    """

    def __init__(self, store: FeatureStore, places: Sequence[Place]) -> None:
        self.folder, self.width, self.dtype = store.folder, store.width, store.dtype
        self.places = list(places)
        self._shards: dict[str, Tensor] = {}
        self._starts: Int[Tensor, " rows"] | None = None
        self._flat: Float[Tensor, "tokens width"] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_shards": {}}

    @property
    def on_device(self) -> bool:
        """Whether the rows were copied to a device."""
        return self._flat is not None

    @property
    def num_bytes(self) -> int:
        """Size of all rows."""
        return sum(place.length for place in self.places) * self.width * self.dtype.itemsize

    def to(self, device: torch.device) -> None:
        """Copy all rows to a device."""
        starts, total, parts = [0] * len(self), 0, []
        by_shard = sorted(range(len(self)), key=lambda row: self.places[row])
        for chunk in _chunks(by_shard, 1024):
            parts.append(torch.cat([self._row(row) for row in chunk]).to(device))
            for row in chunk:
                starts[row], total = total, total + self.places[row].length
        self._starts = torch.tensor(starts)
        self._flat = torch.cat(parts)

    def gather(
        self, rows: Sequence[int], longest: int | None = None
    ) -> Float[Tensor, "rows longest width"]:
        """Return rows, padded with zeros to the longest (or to `longest` tokens)."""
        lengths = [self.places[row].length for row in rows]
        longest = longest or max(lengths)
        if self._flat is None or self._starts is None:
            states = torch.zeros(len(rows), longest, self.width, dtype=self.dtype)
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                states[place, :length] = self._row(row)
            return states
        inside = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
        index = self._starts[torch.tensor(rows)].unsqueeze(1) + torch.arange(longest)
        index = index.where(inside, 0).to(self._flat.device, non_blocking=True)
        outside = (~inside).unsqueeze(-1).to(self._flat.device, non_blocking=True)
        return self._flat[index].masked_fill(outside, 0.0)

    def _row(self, row: int) -> Float[Tensor, "length width"]:
        shard, start, length = self.places[row]
        if shard not in self._shards:
            path = self.folder / shard
            with reading(path, "a shard of features; start again to compute it again"):
                self._shards[shard] = safe_open(path, "pt").get_tensor("states")
        return self._shards[shard][start : start + length]


def _chunks(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
