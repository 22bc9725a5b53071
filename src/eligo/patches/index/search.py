"""Two-stage search: words and folded patches find candidates, the exact score ranks them.

Stage 1 matches without selecting (see `stage1`); stage 2 reads the best R of it from the mapped
files and scores them exactly as the network does. `rerank=None` scores everything: exhaustive
search. Parts of an index (some shards each, in several processes) are searched alone and merged: a
hit carries stage 1's guess, so that the merged list is the one that the whole index would give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.patches.index import stage1
from eligo.patches.index.build import hash_of, matching_net
from eligo.patches.index.entries import image_guides, score_images, score_texts, text_guides
from eligo.patches.index.store import IndexFolder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.sides import Images, Texts

RERANK = 128
_ROWS = 512  # entries scored at a time


@dataclass(frozen=True, eq=False)
class Hits:
    """What was found for one query, best first."""

    rows: Int[Tensor, " hits"]
    """Entries of the index."""
    scores: Float[Tensor, " hits"]
    """Exact scores."""
    guesses: Float[Tensor, " hits"]
    """What stage 1 thought of them."""

    def first(self, k: int) -> "Hits":
        """The k best of them."""
        return Hits(self.rows[:k], self.scores[:k], self.guesses[:k])

    def share_in(self, rows: Int[Tensor, " rows"]) -> float:
        """How much of them is among some entries."""
        return float(torch.isin(self.rows, rows).double().mean())


class Searcher:
    """An index and the model that made it.

    A query is one side of a match with a single element: `model.text_side(["a red ball"])` for an
    index of images, `model.image_side([picture], dense)` for an index of texts.
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
        self.net = matching_net(model)
        self.index = index if isinstance(index, IndexFolder) else IndexFolder(index)
        self.index.check_model(hash_of(model))
        every = range(len(self.index.shards))
        self.shards = list(every if shards is None else shards)
        if approximate and shards is not None:
            raise InputError("approximate: FAISS searches the whole index; leave out shards")
        self._graph = stage1.open_graph(self.index) if approximate else None

    def search(self, query: Texts | Images, *, k: int = 10, rerank: int | None = RERANK) -> Hits:
        """The k best entries; exact among the `rerank` best of stage 1 (None: among all)."""
        check_count("k", k)
        if rerank is not None and check_count("rerank", rerank) < k:
            raise InputError(
                f"got k={k} and rerank={rerank}; expected at least as many to rerank as to find"
            )
        found = self.candidates(query, rerank)
        scores = self.scores(query, found.rows)[:, 0]
        return _best(Hits(found.rows, scores, found.guesses), k)

    @torch.no_grad()
    def candidates(self, query: Texts | Images, count: int | None) -> stage1.Candidates:
        """The entries that stage 1 likes best, in the order of the index."""
        guide = self.guides(query)[0]
        if self._graph is not None and count is not None:
            return stage1.approximate(self.index, self._graph, guide, count)
        return stage1.exact(self.index, self.shards, guide, count)

    @torch.no_grad()
    def scores(
        self, query: Texts | Images, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows queries"]:
        """Exact scores of some entries (ascending) with all elements of a side, on the CPU."""
        if not len(rows):
            return torch.zeros(0, 1)
        parts = []
        for some in rows.split(_ROWS):
            if isinstance(query, Texts):
                parts.append(score_images(self.net, self.index, some, query))
            else:
                parts.append(score_texts(self.net, self.index, some, query))
        return torch.cat(parts).cpu()

    def guides(self, query: Texts | Images) -> list[stage1.Guide]:
        """Every element of a side as stage 1 sees it."""
        wanted = "images" if isinstance(query, Texts) else "texts"
        if self.index.manifest.kind != wanted:
            asked = "a text" if isinstance(query, Texts) else "an image"
            raise InputError(
                f"{self.index.folder}: is an index of {self.index.manifest.kind}, and got {asked} "
                f"to look for; {asked} is looked for in {wanted}"
            )
        return text_guides(query) if isinstance(query, Texts) else image_guides(self.net, query)

    def ids(self, hits: Hits) -> list[dict]:
        """What `ids.jsonl` says of the hits."""
        return [self.index.entries[row] for row in hits.rows.tolist()]


def merge_hits(parts: Sequence[Hits], *, k: int = 10, rerank: int | None = RERANK) -> Hits:
    """Hits of parts of an index as the hits of the whole.

    Each part must have been searched with `k = rerank`, so that nothing is missing.
    """
    columns = zip(*((part.rows, part.scores, part.guesses) for part in parts), strict=True)
    rows, scores, guesses = (torch.cat(column) for column in columns)
    order = rows.argsort()
    rows, scores, guesses = rows[order], scores[order], guesses[order]
    if rerank is not None:
        kept = ops.top_k(guesses, min(rerank, len(rows))).sort().values
        rows, scores, guesses = rows[kept], scores[kept], guesses[kept]
    return _best(Hits(rows, scores, guesses), k)


def _best(hits: Hits, k: int) -> Hits:
    """Rows ascend, so that ties go to the lowest."""
    order = ops.top_k(hits.scores, min(k, len(hits.rows)))
    return Hits(hits.rows[order], hits.scores[order], hits.guesses[order])
