"""FAISS' inverted file (extra `faiss`): only the lists nearest to the query are looked at.

Vectors are kept in half precision, or whole; either way the order within the lists is that of the
exact products. How many lists are looked at is measured (`calibrate`), not guessed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError, MissingExtraError
from eligo.io.files import write_bytes
from eligo.io.reading import reading

_TRAINED_ON = 64  # vectors for each list that the clusters are found from
_LEAST_LISTS = 4


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    return faiss


class IvfStore:
    """A trained FAISS index; FAISS keeps slots as ids."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def train(
        cls, sample: Float[Tensor, "vectors dim"], num_vectors: int, dtype: torch.dtype
    ) -> "IvfStore":
        """Find the clusters of a sample; about `2 sqrt(n)` of them."""
        faiss = _faiss()
        lists = max(_LEAST_LISTS, min(int(2 * num_vectors**0.5), len(sample) // 39))
        if len(sample) < lists:
            raise InputError(
                f"PoolIndex: got {len(sample)} vectors, too few for an approximate index; an exact "
                "one (approximate=False) is fast enough"
            )
        kind = "SQfp16" if dtype == torch.float16 else "Flat"
        index = faiss.index_factory(
            sample.shape[1], f"IVF{lists},{kind}", faiss.METRIC_INNER_PRODUCT
        )
        index.train(_rows(sample[: lists * _TRAINED_ON]))
        index.nprobe = max(1, lists // 8)
        return cls(index)

    def add(self, slots: Int[Tensor, " new"], vectors: Float[Tensor, "new dim"]) -> None:
        """Put vectors into the lists of their clusters, which stay as they are."""
        self.index.add_with_ids(_rows(vectors), slots.cpu().numpy())

    def remove(self, slots: Int[Tensor, " gone"]) -> None:
        """Take vectors out of their lists."""
        self.index.remove_ids(slots.cpu().numpy())

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, allowed: Bool[Tensor, " slots"]
    ) -> tuple[Int[Tensor, "queries k"], Float[Tensor, "queries k"]]:
        """The k best allowed slots among those looked at; fewer (-1) if the lists hold fewer."""
        faiss = _faiss()
        options = faiss.SearchParametersIVF(nprobe=self.index.nprobe)
        if int(allowed.sum()) < self.index.ntotal:
            bits = np.packbits(allowed.cpu().numpy(), bitorder="little")
            chosen = faiss.IDSelectorBitmap(bits)
            options = faiss.SearchParametersIVF(nprobe=self.index.nprobe, sel=chosen)
        values, slots = self.index.search(_rows(queries), k, params=options)
        return torch.from_numpy(slots), torch.from_numpy(values)

    def calibrate(
        self, queries: Float[Tensor, "queries dim"], k: int, recall: float
    ) -> tuple[int, float]:
        """Look at the fewest lists (to 5 %) that find this share of the true k best; that, and it.

        With all lists looked at the search is exhaustive: that is the truth.
        """
        faiss, rows = _faiss(), _rows(queries)

        def found(lists: int) -> np.ndarray:
            options = faiss.SearchParametersIVF(nprobe=lists)
            return self.index.search(rows, k, params=options)[1]

        truth = [set(row[row >= 0].tolist()) for row in found(self.index.nlist)]

        def share(lists: int) -> float:
            hits = [
                len(real & set(row.tolist())) for real, row in zip(truth, found(lists), strict=True)
            ]
            return sum(hits) / max(1, sum(len(real) for real in truth))

        low, high = 0, 1
        while high < self.index.nlist and share(high) < recall:
            low, high = high, min(2 * high, self.index.nlist)
        while high - low > max(1, high // 20):
            middle = (low + high) // 2
            low, high = (low, middle) if share(middle) >= recall else (middle, high)
        self.index.nprobe = high
        return high, share(high)

    @property
    def num_bytes(self) -> int:
        """What vectors, ids and centroids take."""
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


def _rows(vectors: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())
