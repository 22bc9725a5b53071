"""Stage 1: which entries are worth an exact score. One cosine each, exact or by FAISS (HNSW)."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import MissingExtraError, OutputError
from eligo.files import writing
from eligo.patches.retrieval.store import IndexFolder, Shard

GRAPH = "stage1.faiss"
_log = logging.getLogger(__name__)
_NEIGHBOURS = 32  # of each node of the HNSW graph


class Candidates(NamedTuple):
    """Entries in ascending order, and their cosines."""

    rows: Int[Tensor, " rows"]
    cosines: Float[Tensor, " rows"]


def exact(
    index: IndexFolder, shards: Sequence[int], direction: Float[Tensor, " dim"], count: int | None
) -> Candidates:
    """The `count` entries (None: all) of some shards with the largest cosines; ties to the first.

    One shard after the other, keeping only its best: the memory is that of one shard.
    """
    rows, cosines = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0)]
    for shard in shards:
        found = cosines_of(index.shards[shard], direction)
        if count is None:
            best = torch.arange(len(found))
        else:
            best = ops.top_k(found, min(count, len(found)))
        rows.append(best + index.starts[shard])
        cosines.append(found[best])
    # Among equals the earlier shard, and inside it the lower row, stands first: ties stay right.
    every, values = torch.cat(rows), torch.cat(cosines)
    if count is not None:
        best = ops.top_k(values, min(count, len(values)))
        every, values = every[best], values[best]
    order = every.argsort()
    return Candidates(every[order], values[order])


def cosines_of(shard: Shard, direction: Float[Tensor, " dim"]) -> Float[Tensor, " rows"]:
    """The cosine of every entry of a shard."""
    vectors = shard.tensors["direction"]
    if not len(vectors):
        return torch.zeros(0)
    # In float64 a cosine does not depend on how many others are computed with it, nor on the shard.
    return (vectors.double() @ direction.double()).float()


def open_graph(index: IndexFolder) -> Any:
    """The FAISS graph of an index; built, and kept beside the shards, when it is first wanted."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    path = index.folder / GRAPH
    if path.exists():
        return faiss.read_index(str(path))
    width = max(shard.tensors["direction"].shape[1] for shard in index.shards)
    graph = faiss.IndexHNSWFlat(width, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    for shard in index.shards:
        if len(shard):
            graph.add(shard.tensors["direction"].float().numpy())
    try:
        with writing(path) as temporary:
            faiss.write_index(graph, str(temporary))
    except OutputError as error:  # an index that one may only read can be searched too
        _log.warning("not kept: %s", error)
    return graph


def approximate(graph: Any, direction: Float[Tensor, " dim"], count: int) -> Candidates:
    """The `count` entries that a walk through the graph finds; a few of the best may be missed."""
    graph.hnsw.efSearch = max(64, 2 * count)
    values, rows = graph.search(direction.float().unsqueeze(0).numpy(), min(count, graph.ntotal))
    found, cosines = torch.from_numpy(rows[0]), torch.from_numpy(values[0])
    real = found >= 0
    order = found[real].argsort()
    return Candidates(found[real][order], cosines[real][order])
