"""PoolIndex: unit vectors of candidates, projected once; the best for a query. Section 4.

A candidate lives in a slot. Removed slots are never found again and are used for what is added
later; nothing is projected or clustered anew.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError
from eligo.io.files import make_folder
from eligo.io.reading import reading
from eligo.io.tensors import save_tensors
from eligo.shots.pool.exact import ExactStore
from eligo.shots.pool.ivf import IvfStore

_SLOTS, _FAISS = "slots.safetensors", "vectors.faiss"
_CHUNK = 65_536
_SAMPLE = 262_144  # vectors that clusters are found from, at most
Precision = Literal["float16", "float32"]


class Hits(NamedTuple):
    """The best slots of each query, best first."""

    slots: Int[Tensor, "queries k"]
    """-1 where there are fewer."""
    scores: Float[Tensor, "queries k"]
    """Products with the query; -inf where there are fewer."""


class PoolIndex:
    """The candidates with the largest products with a query.

    >>> index = PoolIndex.build(torch.eye(4))
    >>> index.remove(torch.tensor([0]))
    >>> index.search(torch.tensor([[0.9, 0.5, 0.7, 0.1]]), 2).slots
    tensor([[2, 1]])
    """

    def __init__(self, store: ExactStore | IvfStore, alive: Bool[Tensor, " slots"]) -> None:
        self.store, self.alive = store, alive

    @classmethod
    def build(
        cls,
        embeddings: Float[Tensor, "candidates width"],
        project: Callable[[Tensor], Tensor] | None = None,
        *,
        precision: Precision = "float16",
        approximate: bool = False,
        device: torch.device | str = "cpu",
    ) -> "PoolIndex":
        """Project candidates (`model.candidate_tower`; None: as they are), chunk by chunk.

        Approximate: FAISS (extra `faiss`); call `calibrate` with queries of your own.
        """
        project = project or (lambda chunk: chunk)
        dtype = torch.float16 if precision == "float16" else torch.float32
        count = len(embeddings)
        with torch.no_grad():
            if approximate:
                # Every n-th: a pool is often sorted by what it is of.
                sample = project(embeddings[:: max(1, -(-count // _SAMPLE))])
                store = IvfStore.train(sample, count, dtype)
            else:
                dim = project(embeddings[:1]).shape[1]
                store = ExactStore(dim, dtype, device)
                store.vectors = store.vectors.new_zeros(count, dim)
            for start in range(0, count, _CHUNK):
                chunk = embeddings[start : start + _CHUNK]
                store.add(torch.arange(start, start + len(chunk)), project(chunk))
        return cls(store, torch.ones(count, dtype=torch.bool))

    def __len__(self) -> int:
        return int(self.alive.sum())

    def add(self, vectors: Float[Tensor, "new dim"]) -> Int[Tensor, " new"]:
        """More (projected) vectors; the slots they now have."""
        free = (~self.alive).nonzero().flatten()[: len(vectors)]
        more = torch.arange(len(self.alive), len(self.alive) + len(vectors) - len(free))
        slots = torch.cat([free, more])
        self.alive = torch.nn.functional.pad(self.alive, (0, len(more)))
        self.alive[slots] = True
        self.store.add(slots, vectors)
        return slots

    def remove(self, slots: Int[Tensor, " gone"]) -> None:
        """Never find these again."""
        if not self.alive[slots].all():
            raise InputError(f"PoolIndex: slot {int(slots[~self.alive[slots]][0])} holds nothing")
        self.alive[slots] = False
        self.store.remove(slots)

    def search(
        self,
        queries: Float[Tensor, "queries dim"],
        k: int,
        allowed: Bool[Tensor, " slots"] | None = None,
    ) -> Hits:
        """The k best of each query, among `allowed` slots if they are given."""
        if k < 1:
            raise InputError(f"PoolIndex: got k {k}, expected >= 1")
        alive = self.alive if allowed is None else self.alive & allowed
        slots, scores = self.store.search(queries, k, alive)
        missing = k - slots.shape[1]
        slots = torch.nn.functional.pad(slots, (0, missing), value=-1)
        scores = torch.nn.functional.pad(scores, (0, missing))
        return Hits(slots, scores.masked_fill(slots < 0, -torch.inf))

    def calibrate(
        self, queries: Float[Tensor, "queries dim"], k: int = 64, recall: float = 0.985
    ) -> float:
        """Make an approximate index look at as little as finds this share of the true k best.

        Give queries like those to come, not the candidates themselves. Returns the share found.
        """
        if isinstance(self.store, ExactStore):
            return 1.0
        return self.store.calibrate(queries, k, recall)[1]

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return self.store.num_bytes + self.alive.nbytes

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads back."""
        folder = make_folder(folder)
        tensors = {"alive": self.alive}
        if isinstance(self.store, ExactStore):
            tensors["vectors"] = self.store.vectors
        else:
            self.store.save(folder / _FAISS)
        save_tensors(folder / _SLOTS, tensors)

    @classmethod
    def load(cls, folder: str | Path) -> "PoolIndex":
        """Read what `save` wrote."""
        path = Path(folder) / _SLOTS
        with reading(path, "an index: build it again"):
            tensors = load_file(path)
            alive = tensors["alive"]
        if "vectors" not in tensors:
            return cls(IvfStore.load(Path(folder) / _FAISS), alive)
        vectors = tensors["vectors"]
        store = ExactStore(vectors.shape[1], vectors.dtype)
        store.vectors = vectors
        return cls(store, alive)
