"""Two-stage search: stage 1 finds candidates, stage 2 ranks them by the exact score.

Stage 1 matches without a selection (see `stage1`); stage 2 reads the best R of it from the mapped
files and scores them exactly. `rerank=None` scores everything: exhaustive search. Parts of an index
(several shards each, in several processes) can be searched separately and merged: hits have their
stage 1 score, so that the merged list is that of the whole index.

`calibrate` measures stage 1 once, on validation queries: the rank of each of the exhaustive top 10
in stage 1, stored as `stage1.json`. From these ranks follows the recall at every R.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.patches.index import stage1
from eligo.patches.index.build import hash_of
from eligo.patches.index.entries import image_queries, score_images, score_texts, text_queries
from eligo.patches.index.store import CALIBRATION, IndexFolder
from eligo.patches.model.baselines import GlobalCosine
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.retrieval_model import RetrievalModel

RERANK, TOP, TARGET = 128, 10, 0.995
_ROWS = 512  # entries scored at a time


@dataclass(frozen=True, eq=False)
class Hits:
    """Entries found for one query, best first."""

    rows: Int[Tensor, " hits"]
    """Entries of the index."""
    scores: Float[Tensor, " hits"]
    """Exact scores."""
    guesses: Float[Tensor, " hits"]
    """Scores in stage 1."""

    def first(self, k: int) -> "Hits":
        """Return the k best."""
        return self[slice(k)]

    def __getitem__(self, which: slice | Int[Tensor, " some"]) -> "Hits":
        return Hits(self.rows[which], self.scores[which], self.guesses[which])

    def share_in(self, rows: Int[Tensor, " rows"]) -> float:
        """Return the share of the hits that is among the given entries."""
        return float(torch.isin(self.rows, rows).double().mean())


class Searcher:
    """An index and the model that it was built with.

    A query is an input of `match` with a single element: `model.text_side(["a red ball"])` for an
    index of images, `model.image_side([picture], dense)` for an index of texts. An image also finds
    images: by the cosine of one vector each, in one exact stage.
    """

    def __init__(
        self,
        model: RetrievalModel,
        index: IndexFolder | str | Path,
        *,
        approximate: bool = False,
        shards: Sequence[int] | None = None,
    ) -> None:
        """`approximate`: stage 1 by FAISS. `shards`: search only these (see `merge_hits`)."""
        self.model = model.eval()
        self.net = model.index_net()
        self.index = index if isinstance(index, IndexFolder) else IndexFolder(index)
        self.index.check_model(hash_of(model))
        self.shards = list(range(len(self.index.shards)) if shards is None else shards)
        if approximate and shards is not None:
            raise InputError("approximate: FAISS searches the whole index; leave out shards")
        self._graph = stage1.open_graph(self.index) if approximate else None

    def search(self, query: Texts | Images, *, k: int = 10, rerank: int | None = RERANK) -> Hits:
        """Return the k best entries, exact among the `rerank` best of stage 1 (None: among all).

        At least k entries are scored exactly.
        """
        check_count("k", k)
        if rerank is not None:
            rerank = max(k, check_count("rerank", rerank))
        candidates = self.candidates(query, rerank)
        scores = self.scores(query, candidates.rows)[:, 0]
        return _best(Hits(candidates.rows, scores, candidates.guesses), k)

    @torch.no_grad()
    def candidates(self, query: Texts | Images, count: int | None) -> stage1.Candidates:
        """Return the best entries of stage 1, in the order of the index."""
        first = self.stage1_queries(query)[0]
        if self._graph is not None and count is not None:
            return stage1.approximate(self.index, self._graph, first, count)
        return stage1.exact(self.index, self.shards, first, count)

    @torch.no_grad()
    def scores(
        self, query: Texts | Images, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows queries"]:
        """Return exact scores of entries (ascending rows) with all queries, on the CPU."""
        if not len(rows):
            return torch.zeros(0, 1)
        net = self.net
        if isinstance(net, GlobalCosine) or self.is_exact(query):
            queries = self.stage1_queries(query)
            picked = self.index.gather(rows, lambda tensors, inside: tensors["direction"][inside])
            directions = torch.stack([each.direction for each in queries])
            return (torch.cat(picked).double() @ directions.double().T).float()
        parts = []
        for chunk in rows.split(_ROWS):
            if isinstance(query, Texts):
                parts.append(score_images(net, self.index, chunk, query))
            else:
                parts.append(score_texts(net, self.index, chunk, query))
        return torch.cat(parts).cpu()

    def is_exact(self, query: Texts | Images) -> bool:
        """Whether stage 1 gives the score itself: there is one vector of each entry."""
        return isinstance(self.net, GlobalCosine) or self._is_of_images(query)

    def _is_of_images(self, query: Texts | Images) -> bool:
        return isinstance(query, Images) and self.index.manifest.kind == "images"

    def stage1_queries(self, query: Texts | Images) -> list[stage1.Stage1Query]:
        """Return the queries of stage 1, one for each element."""
        if isinstance(query, Texts):
            if self.index.manifest.kind == "texts":
                raise InputError(
                    f"{self.index.folder}: is an index of texts, and the query is a text; expected "
                    "an image, or an index of images"
                )
            return text_queries(self.net, query)
        queries = image_queries(self.net, query)
        if self._is_of_images(query):
            return [stage1.Stage1Query(None, each.direction) for each in queries]
        return queries

    def ids(self, hits: Hits) -> list[dict]:
        """Return id (and, in an index of texts, text) of the hits."""
        return [self.index.entry(row) for row in hits.rows.tolist()]

    def found(self, hits: Hits) -> list[dict]:
        """Return the hits as rows of a table: rank, id (and text) and score."""
        rows = zip(self.ids(hits), hits.scores.tolist(), strict=True)
        return [
            {"rank": rank, **entry, "score": round(score, 4)}
            for rank, (entry, score) in enumerate(rows, 1)
        ]


def merge_hits(parts: Sequence[Hits], *, k: int = 10, rerank: int | None = RERANK) -> Hits:
    """Merge the hits of parts of an index, each searched with `k = rerank`."""
    columns = zip(*((part.rows, part.scores, part.guesses) for part in parts), strict=True)
    hits = Hits(*(torch.cat(column) for column in columns))
    hits = hits[hits.rows.argsort()]
    if rerank is not None:
        hits = hits[ops.top_k(hits.guesses, min(rerank, len(hits.rows))).sort().values]
    return _best(hits, k)


def _best(hits: Hits, k: int) -> Hits:
    """Return the k best; rows ascend, so that ties go to the lowest."""
    return hits[ops.top_k(hits.scores, min(k, len(hits.rows)))]


@dataclass(frozen=True)
class Calibration:
    """Ranks of the exhaustive top 10 in stage 1, from 0, ascending."""

    queries: int
    source: str
    """Origin of the queries."""
    ranks: tuple[int, ...]

    def recall(self, rerank: int) -> float:
        """Return the share of the exhaustive top 10 among the first `rerank` of stage 1."""
        return sum(rank < rerank for rank in self.ranks) / len(self.ranks)

    def smallest(self, target: float = TARGET) -> int:
        """Return the smallest R that reaches a recall.

        >>> Calibration(1, "dev", (0, 1, 2, 50)).smallest(0.75)
        3
        """
        return self.ranks[max(0, ceil(target * len(self.ranks) - 1e-9) - 1)] + 1

    def save(self, index: IndexFolder) -> None:
        """Write it beside the shards."""
        write_text(index.folder / CALIBRATION, json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, index: IndexFolder) -> "Calibration | None":
        """Return the stored measurement, if there is one."""
        path = index.folder / CALIBRATION
        if not path.exists():
            return None
        with reading(path, "what `--rerank auto` measured; remove it"):
            stored = read_json(path)
            return cls(stored["queries"], stored["source"], tuple(map(int, stored["ranks"])))


def ranks_of_best(
    guesses: Float[Tensor, " entries"], scores: Float[Tensor, " entries"], top: int = TOP
) -> list[int]:
    """Return the stage 1 ranks of the `top` entries that score best.

    >>> ranks_of_best(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([3.0, 1.0, 2.0]), 2)
    [2, 1]
    """
    rank = ops.top_k(guesses, len(guesses)).argsort()
    return rank[ops.top_k(scores, min(top, len(scores)))].tolist()


def calibrate(
    searcher: Searcher,
    queries: Sequence[Texts] | Sequence[Images],
    source: str,
    *,
    top: int = TOP,
    on_done: Callable[[int], None] | None = None,
) -> Calibration:
    """Search exhaustively and return the stage 1 ranks of the results.

    Each element of `queries` may hold several queries, which is faster.
    """
    ranks: list[int] = []
    count = 0
    for batch in queries:
        scores = searcher.scores(batch, searcher.index.rows)  # (entries, queries)
        for column, first in zip(scores.T, searcher.stage1_queries(batch), strict=True):
            guesses = stage1.exact(searcher.index, searcher.shards, first, None).guesses
            ranks += ranks_of_best(guesses, column, top)
            count += 1
        if on_done is not None:
            on_done(count)
    if not ranks:
        raise InputError("dev queries: got none, expected at least one")
    return Calibration(count, source, tuple(sorted(ranks)))
