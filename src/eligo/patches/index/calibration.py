"""How good stage 1 is: its recall of the exhaustive top 10, and the smallest R that suffices.

Measured once on queries that are nobody's test (`dev`), kept in `stage1.json` beside the index: the
rank that stage 1 gave to each of the exhaustive top 10 of each query. From those ranks follows the
recall at every R.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.patches.index.search import Searcher
from eligo.patches.index.stage1 import guesses_of
from eligo.patches.index.store import IndexFolder
from eligo.patches.model.sides import Images, Texts

TOP, TARGET = 10, 0.995
FILE = "stage1.json"


@dataclass(frozen=True)
class Calibration:
    """Ranks of the exhaustive top 10 in stage 1, from 0, ascending."""

    queries: int
    source: str
    """Where the queries came from."""
    ranks: tuple[int, ...]

    def recall(self, rerank: int) -> float:
        """Share of the exhaustive top 10 among the first `rerank` of stage 1."""
        return sum(rank < rerank for rank in self.ranks) / len(self.ranks)

    def smallest(self, target: float = TARGET) -> int:
        """The smallest R that reaches a recall.

        >>> Calibration(1, "dev", (0, 1, 2, 50)).smallest(0.75)
        3
        """
        return self.ranks[max(0, ceil(target * len(self.ranks) - 1e-9) - 1)] + 1

    def save(self, index: IndexFolder) -> None:
        """Keep it beside the shards."""
        write_text(index.folder / FILE, json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, index: IndexFolder) -> "Calibration | None":
        """What was measured before, if anything."""
        path = index.folder / FILE
        if not path.exists():
            return None
        with reading(path, "what `--rerank auto` measured; remove it"):
            found = read_json(path)
            return cls(found["queries"], found["source"], tuple(map(int, found["ranks"])))


def ranks_of_best(
    guesses: Float[Tensor, " entries"], scores: Float[Tensor, " entries"], top: int = TOP
) -> list[int]:
    """Where a first stage ranks the `top` entries that score best.

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
    """Search exhaustively for every query, and look up what stage 1 thought of what was found.

    A query may be a side of several elements, which is faster.
    """
    ranks: list[int] = []
    count = 0
    rows = torch.arange(len(searcher.index))
    for side in queries:
        scores = searcher.scores(side, rows)  # (entries, elements)
        for column, guide in zip(scores.T, searcher.guides(side), strict=True):
            guesses = torch.cat([guesses_of(shard, guide) for shard in searcher.index.shards])
            ranks += ranks_of_best(guesses, column, top)
            count += 1
        if on_done is not None:
            on_done(count)
    if not ranks:
        raise InputError("dev queries: got none, expected at least one")
    return Calibration(count, source, tuple(sorted(ranks)))
