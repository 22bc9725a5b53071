"""Stage 1 of a search: fast approximate scores that choose the candidates of stage 2.

Every image's patches are folded into the network's slots without a selection; slots and words are
then matched both ways, as in equation 5. The score leaves out the selection, the extra token,
[CLS], the leaky ReLU and the learned relevance of the paper variant.

The usual first stage, the cosine of two means, finds two thirds of the exhaustive top 10; this one
finds nearly all (docs/patches_retrieval.md). For very large indexes FAISS (inverted lists) searches
the directions for the entries that stage 1 scores; entries that these miss are lost.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import MissingExtraError, OutputError
from eligo.io.files import write_bytes
from eligo.io.reading import reading
from eligo.patches.index.store import GRAPH, IndexFolder, Shard
from eligo.patches.model.functional import unit

_log = logging.getLogger(__name__)
_WIDER = 16  # entries from FAISS per candidate
_PER_LIST, _MAX_LISTS = 256, 2048  # vectors in a list of FAISS
_SAMPLED = 64  # vectors for each centroid
_READ = 2  # one in so many lists is read


class Stage1Query(NamedTuple):
    """A query of stage 1."""

    vectors: Float[Tensor, "vectors dim"] | None
    """Unit words of a text, or unit slots of an image; None: the direction alone is compared."""
    direction: Float[Tensor, " dim"]
    """The unit mean word or patch, for FAISS; or the one vector of the text or image."""


class Candidates(NamedTuple):
    """Entries in ascending order, and their scores in stage 1."""

    rows: Int[Tensor, " rows"]
    guesses: Float[Tensor, " rows"]


def exact(
    index: IndexFolder, shards: Sequence[int], query: Stage1Query, count: int | None
) -> Candidates:
    """Return the `count` entries (None: all) of these shards with the best stage 1 scores.

    Shards are read one after the other, so that the memory is that of one shard.
    """
    rows, guesses = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0)]
    for shard in shards:
        inside = index.rows_of(shard)
        scores = guesses_of(index.shards[shard], query)[inside]
        best = torch.arange(len(scores)) if count is None else _first(scores, count)
        rows.append(inside[best] + index.starts[shard])
        guesses.append(scores[best])
    # Ties go to the earlier shard and the lower row.
    return _ascending(torch.cat(rows), torch.cat(guesses), count)


def guesses_of(shard: Shard, query: Stage1Query) -> Float[Tensor, " rows"]:
    """Return the stage 1 scores of every entry of a shard."""
    return _guesses(shard.tensors, query) if len(shard) else torch.zeros(0)


def open_graph(index: IndexFolder) -> Any:
    """Load the FAISS index of the directions; built on first use and stored beside the shards."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    path = index.folder / GRAPH
    if path.exists():
        with reading(path, "an index of FAISS: remove it"):
            return faiss.read_index(str(path))
    width = max((shard.tensors["direction"].shape[1] for shard in index.shards), default=1)
    graph = make_lists(width, len(index), partial(_sample, index))
    for number, shard in enumerate(index.shards):
        inside = index.rows_of(number)
        if len(inside):
            vectors = shard.tensors["direction"][inside].float().numpy()
            graph.add_with_ids(vectors, (inside + index.starts[number]).numpy())
    try:
        write_bytes(path, faiss.serialize_index(graph).tobytes())
    except OutputError as error:  # a read-only index can be searched too
        _log.warning("the FAISS index is not stored: %s", error)
    return graph


def make_lists(width: int, count: int, sample: Callable[[int], Float[Tensor, "some width"]]) -> Any:
    """Return an empty FAISS index for `count` vectors: lists around centroids, in half precision.

    The centroids are those of `sample(number of vectors)`. A search reads half of the lists
    (docs/patches_scale.md: why not fewer).
    """
    import faiss

    num_lists = max(1, min(_MAX_LISTS, count // _PER_LIST))
    lists = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width), width, num_lists,
        faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT,
    )  # fmt: skip
    lists.cp.spherical = True
    lists.cp.min_points_per_centroid = 1  # no warning: there are as many as there are
    lists.cp.niter = 10
    lists.train(sample(min(count, _SAMPLED * num_lists)).float().numpy())
    lists.nprobe = -(-num_lists // _READ)
    return lists


def _sample(index: IndexFolder, size: int) -> Float[Tensor, "some dim"]:
    """Return the directions of some entries, spread over the whole index."""
    rows = index.rows[torch.linspace(0, len(index) - 1, size).long()]
    parts = index.gather(rows, lambda tensors, inside: tensors["direction"][inside])
    return torch.cat(parts)


def approximate(index: IndexFolder, graph: Any, query: Stage1Query, count: int) -> Candidates:
    """Return the `count` best entries among those that FAISS finds; it may miss some."""
    # One vector of each entry is what FAISS compares: only its rounding is made good.
    wider = min(count + 8 if query.vectors is None else _WIDER * count, graph.ntotal)
    if not wider:
        return Candidates(torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    _, neighbours = graph.search(query.direction.float().unsqueeze(0).numpy(), wider)
    rows = torch.from_numpy(neighbours[0]).sort().values
    rows = rows[rows >= 0]
    parts = index.gather(rows, lambda tensors, inside: _guesses(tensors, query, inside))
    return _ascending(rows, torch.cat([torch.zeros(0), *parts]), count)


def words_of_rows(tensors: dict[str, Tensor], rows: Int[Tensor, " rows"]) -> list[Tensor]:
    """Return the words of the given texts of a shard."""
    ends = tensors["length"].long().cumsum(0)
    starts = ends - tensors["length"]
    return [
        tensors["words"][start:end]
        for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
    ]


def _guesses(
    tensors: dict[str, Tensor], query: Stage1Query, rows: Tensor | None = None
) -> Float[Tensor, " rows"]:
    """Return the stage 1 scores of the given entries of a shard (None: of all)."""
    if query.vectors is None:
        vectors = tensors["direction"] if rows is None else tensors["direction"][rows]
        return (vectors.double() @ query.direction.double()).float()
    if "folded" in tensors:
        folded = tensors["folded"] if rows is None else tensors["folded"][rows]
        return ops.maxsim(query.vectors[None], folded, two_sided=True)
    words, lengths = tensors["words"], tensors["length"].long()
    if rows is not None:
        words, lengths = torch.cat(words_of_rows(tensors, rows)), lengths[rows]
    # In float64, so that a text's guess does not depend on the other texts.
    cosines = unit(words).double() @ query.vectors.double().T  # (all words, slots)
    text = torch.arange(len(lengths)).repeat_interleave(lengths)
    per_word = torch.zeros(len(lengths), dtype=torch.float64)
    per_word.scatter_add_(0, text, cosines.amax(1))
    per_slot = torch.full((len(lengths), cosines.shape[1]), -torch.inf, dtype=torch.float64)
    per_slot.scatter_reduce_(0, text.unsqueeze(1).expand_as(cosines), cosines, "amax")
    return (per_word / lengths + per_slot.mean(1)).float()


def _first(guesses: Tensor, count: int) -> Tensor:
    return ops.top_k(guesses, min(count, len(guesses)))


def _ascending(rows: Tensor, guesses: Tensor, count: int | None) -> Candidates:
    """Return the `count` best (None: all) of the entries, in the order of the index."""
    kept = torch.arange(len(rows)) if count is None else _first(guesses, count)
    kept = kept[rows[kept].argsort()]
    return Candidates(rows[kept], guesses[kept])
