"""PoolIndex: nearest-neighbour search among the projected vectors of a pool, exact or by FAISS.

Each candidate has a slot. The slots of removed candidates are reused by later additions; nothing is
projected or clustered again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError, MissingExtraError
from eligo.io.files import make_folder, write_bytes
from eligo.io.reading import reading
from eligo.io.tensors import save_tensors

_SLOTS, _FAISS = "slots.safetensors", "vectors.faiss"
_CHUNK = 65_536  # rows projected or compared at a time
_SAMPLE = 262_144  # maximum number of vectors that clusters are trained on
_PER_LIST = 64  # training vectors for each list
_MIN_LISTS = 4
Precision = Literal["float16", "float32"]


class Hits(NamedTuple):
    """The best slots of each query, best first."""

    slots: Int[Tensor, "queries k"]
    """-1 where there are fewer."""
    scores: Float[Tensor, "queries k"]
    """Inner products with the query; -inf where there are fewer."""


class PoolIndex:
    """The candidates with the largest inner products with a query.

    >>> index = PoolIndex.build(torch.eye(4))
    >>> index.remove(torch.tensor([0]))
    >>> index.search(torch.tensor([[0.9, 0.5, 0.7, 0.1]]), 2).slots
    tensor([[2, 1]])
    """

    def __init__(self, store: "ExactStore | IvfStore", alive: Bool[Tensor, " slots"]) -> None:
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
        """Project candidates (`model.candidate_tower`; None: as they are) and index them.

        `approximate` uses FAISS (extra `faiss`); call `calibrate` with queries of your own.
        """
        project = project or (lambda chunk: chunk)
        dtype = torch.float16 if precision == "float16" else torch.float32
        count = len(embeddings)
        with torch.no_grad():
            if approximate:
                # Every n-th vector: a pool is often sorted by topic.
                sample = project(embeddings[:: max(1, -(-count // _SAMPLE))])
                store = IvfStore.train(sample, count, dtype)
            else:
                dim = project(embeddings[:1]).shape[1]
                store = ExactStore(torch.zeros(count, dim, dtype=dtype, device=device))
            for start in range(0, count, _CHUNK):
                chunk = embeddings[start : start + _CHUNK]
                store.add(torch.arange(start, start + len(chunk)), project(chunk))
        return cls(store, torch.ones(count, dtype=torch.bool))

    def __len__(self) -> int:
        return int(self.alive.sum())

    def add(self, vectors: Float[Tensor, "new dim"]) -> Int[Tensor, " new"]:
        """Add projected vectors and return their slots."""
        free = (~self.alive).nonzero().flatten()[: len(vectors)]
        more = torch.arange(len(self.alive), len(self.alive) + len(vectors) - len(free))
        slots = torch.cat([free, more])
        self.alive = F.pad(self.alive, (0, len(more)))
        self.alive[slots] = True
        self.store.add(slots, vectors)
        return slots

    def remove(self, slots: Int[Tensor, " removed"]) -> None:
        """Remove these slots from the index."""
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
        """Return the k best slots of each query, among `allowed` ones if given."""
        if k < 1:
            raise InputError(f"PoolIndex: got k {k}, expected >= 1")
        alive = self.alive if allowed is None else self.alive & allowed
        slots, scores = self.store.search(queries, k, alive)
        missing = k - slots.shape[1]
        slots, scores = F.pad(slots, (0, missing), value=-1), F.pad(scores, (0, missing))
        return Hits(slots, scores.masked_fill(slots < 0, -torch.inf))

    def calibrate(
        self, queries: Float[Tensor, "queries dim"], k: int = 64, recall: float = 0.985
    ) -> float:
        """Set the fewest lists to search that reach this recall of the k best; return the recall.

        Give representative queries, not the candidates themselves.
        """
        return self.store.calibrate(queries, k, recall)

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.store.num_bytes + self.alive.nbytes

    def save(self, folder: str | Path) -> None:
        """Write the folder that `load` reads."""
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
        if "vectors" in tensors:
            return cls(ExactStore(tensors["vectors"]), alive)
        return cls(IvfStore.load(Path(folder) / _FAISS), alive)


class ExactStore:
    """Vectors by slot in one tensor that grows by doubling; search compares all of them."""

    def __init__(self, vectors: Float[Tensor, "slots dim"]) -> None:
        self.vectors = vectors

    def add(self, slots: Int[Tensor, " new"], vectors: Float[Tensor, "new dim"]) -> None:
        """Put vectors into these slots."""
        if not len(slots):
            return
        needed, have = int(slots.max()) + 1, len(self.vectors)
        if needed > have:
            grown = self.vectors.new_zeros(max(needed, 2 * have), self.vectors.shape[1])
            grown[:have] = self.vectors
            self.vectors = grown
        self.vectors[slots.to(self.vectors.device)] = vectors.to(self.vectors)

    def remove(self, slots: Int[Tensor, " removed"]) -> None:
        """Do nothing: the index no longer allows these slots."""

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, allowed: Bool[Tensor, " slots"]
    ) -> tuple[Int[Tensor, "queries k"], Float[Tensor, "queries k"]]:
        """Return the k best allowed slots and their inner products, chunk by chunk."""
        queries = queries.to(self.vectors.device).float()
        slots = queries.new_full((len(queries), 0), -1, dtype=torch.int64)
        values = queries.new_zeros((len(queries), 0))
        for start in range(0, len(allowed), _CHUNK):
            mask = allowed[start : start + _CHUNK].to(queries.device).expand(len(queries), -1)
            scores = queries @ self.vectors[start : start + mask.shape[1]].float().T
            best = ops.top_k(scores, min(k, mask.shape[1]), mask)
            slots = torch.cat([slots, torch.where(best < 0, -1, best + start)], 1)
            values = torch.cat([values, ops.gather(scores, best)], 1)
            # Earlier chunks come first, so ties still go to the lowest slot.
            order = ops.top_k(values, min(k, values.shape[1]), slots >= 0)
            slots = ops.gather(slots, order).masked_fill(order < 0, -1)
            values = ops.gather(values, order)
        return slots, values

    def calibrate(self, queries: Tensor, k: int, recall: float) -> float:  # noqa: ARG002
        """Return 1: an exact search finds everything."""
        return 1.0

    @property
    def num_bytes(self) -> int:
        """Size of the vectors."""
        return self.vectors.nbytes


class IvfStore:
    """FAISS' inverted file (extra `faiss`): search compares only the lists nearest to the query.

    Vectors are kept in float16 or float32; within the lists, products are exact. FAISS keeps slots
    as ids.
    """

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def train(
        cls, sample: Float[Tensor, "vectors dim"], num_vectors: int, dtype: torch.dtype
    ) -> "IvfStore":
        """Cluster a sample into about `2 sqrt(n)` lists."""
        faiss = _faiss()
        lists = max(_MIN_LISTS, min(int(2 * num_vectors**0.5), len(sample) // 39))
        if len(sample) < lists:
            raise InputError(
                f"PoolIndex: got {len(sample)} vectors, too few for an approximate index; an exact "
                "one (approximate=False) is fast enough"
            )
        kind = "SQfp16" if dtype == torch.float16 else "Flat"
        index = faiss.index_factory(
            sample.shape[1], f"IVF{lists},{kind}", faiss.METRIC_INNER_PRODUCT
        )
        index.train(_as_numpy(sample[: lists * _PER_LIST]))
        index.nprobe = max(1, lists // 8)
        return cls(index)

    def add(self, slots: Int[Tensor, " new"], vectors: Float[Tensor, "new dim"]) -> None:
        """Add vectors to the lists of their clusters, which do not change."""
        self.index.add_with_ids(_as_numpy(vectors), slots.cpu().numpy())

    def remove(self, slots: Int[Tensor, " removed"]) -> None:
        """Remove vectors from their lists."""
        self.index.remove_ids(slots.cpu().numpy())

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, allowed: Bool[Tensor, " slots"]
    ) -> tuple[Int[Tensor, "queries k"], Float[Tensor, "queries k"]]:
        """Return the k best allowed slots of the searched lists; -1 if those hold fewer."""
        faiss = _faiss()
        options = faiss.SearchParametersIVF(nprobe=self.index.nprobe)
        if int(allowed.sum()) < self.index.ntotal:
            bits = np.packbits(allowed.cpu().numpy(), bitorder="little")
            chosen = faiss.IDSelectorBitmap(bits)
            options = faiss.SearchParametersIVF(nprobe=self.index.nprobe, sel=chosen)
        values, slots = self.index.search(_as_numpy(queries), k, params=options)
        return torch.from_numpy(slots), torch.from_numpy(values)

    def calibrate(self, queries: Float[Tensor, "queries dim"], k: int, recall: float) -> float:
        """Set the smallest number of lists (to 5 %) that reaches this recall; return the recall.

        The truth is a search of all lists, which is exhaustive.
        """
        faiss, rows = _faiss(), _as_numpy(queries)

        def search_lists(lists: int) -> np.ndarray:
            options = faiss.SearchParametersIVF(nprobe=lists)
            return self.index.search(rows, k, params=options)[1]

        truth = [set(row[row >= 0].tolist()) for row in search_lists(self.index.nlist)]

        def recall_of(lists: int) -> float:
            hits = [
                len(true & set(row.tolist()))
                for true, row in zip(truth, search_lists(lists), strict=True)
            ]
            return sum(hits) / max(1, sum(len(true) for true in truth))

        low, high = 0, 1
        while high < self.index.nlist and recall_of(high) < recall:
            low, high = high, min(2 * high, self.index.nlist)
        while high - low > max(1, high // 20):
            middle = (low + high) // 2
            low, high = (low, middle) if recall_of(middle) >= recall else (middle, high)
        self.index.nprobe = high
        return recall_of(high)

    @property
    def num_bytes(self) -> int:
        """Size of vectors, ids and centroids."""
        per_vector = self.index.sa_code_size() if hasattr(self.index, "sa_code_size") else 0
        per_vector = getattr(self.index, "code_size", per_vector) + 8
        return self.index.ntotal * per_vector + self.index.nlist * self.index.d * 4

    def save(self, path: Path) -> None:
        """Write FAISS' own file."""
        write_bytes(path, _faiss().serialize_index(self.index).tobytes())

    @classmethod
    def load(cls, path: Path) -> "IvfStore":
        """Read FAISS' own file."""
        faiss = _faiss()
        with reading(path, "an index of FAISS: build it again"):
            return cls(faiss.read_index(str(path)))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    return faiss


def _as_numpy(vectors: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())
