"""kNN: the examples nearest to the query by cosine, as in RICES (Yang et al. 2022)."""

from typing import ClassVar

from torch import Tensor

from eligo import ops
from eligo.shots.data.query import Query
from eligo.shots.selector import PoolSelector, ScoredPicks


class KNN(PoolSelector):
    """The examples most similar to the query."""

    kind: ClassVar[str] = "knn"

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        scores = self.pool.vectors[rows] @ query.vector
        return ScoredPicks(ops.top_k(scores, shots), scores)
