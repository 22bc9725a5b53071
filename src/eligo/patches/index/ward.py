"""Ward's clustering of weighted points (Ward 1963), by nearest-neighbour chains (Murtagh 1983).

Merges the two clusters whose union adds least to `sum_i w_i |x_i - mean|^2`; with equal weights it
is the usual one, which SciPy has. O(n^2) steps of NumPy; sizes are sums of weights.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64


class Merge(NamedTuple):
    """Two clusters become one; a cluster is named by one of its points."""

    height: float
    """What the merge adds to the sum of squares."""
    into: int
    other: int


def ward_tree(
    squared: Float64[np.ndarray, "points points"], weights: Float64[np.ndarray, " points"]
) -> list[Merge]:
    """All merges, from squared distances, by rising height.

    >>> squared = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
    >>> ward_tree(squared, np.ones(3))[0]
    Merge(height=0.5, into=1, other=0)
    """
    size = weights.copy()
    cost = squared * (size[:, None] * size / (size[:, None] + size))
    np.fill_diagonal(cost, np.inf)
    gone = np.zeros(len(size), dtype=bool)
    merges, chain = [], []
    for _ in range(len(size) - 1):
        if not chain:
            chain.append(int(np.argmin(gone)))
        while True:
            last = chain[-1]
            near = int(cost[last].argmin())
            if len(chain) > 1 and cost[last, chain[-2]] <= cost[last, near]:
                break  # each the other's nearest
            chain.append(near)
        into, other = chain.pop(), chain.pop()
        height = cost[into, other]
        merges.append(Merge(float(height), into, other))
        # Lance and Williams' update, with weights for sizes.
        row = (size[into] + size) * cost[into] + (size[other] + size) * cost[other] - size * height
        row /= size[into] + size[other] + size
        gone[other] = True
        row[gone] = row[into] = np.inf
        cost[into], cost[:, into] = row, row
        cost[other], cost[:, other] = np.inf, np.inf
        size[into] += size[other]
    return sorted(merges, key=lambda merge: merge.height)  # stable: equal heights as they came


def cut_tree(tree: list[Merge], count: int) -> Int64[np.ndarray, " points"]:
    """The cluster, 0 ... count - 1, of each point; clusters are numbered by their first point."""
    owner = np.arange(len(tree) + 1)
    for merge in tree[: len(owner) - count]:
        one, other = owner[merge.into], owner[merge.other]
        owner[owner == max(one, other)] = min(one, other)
    return np.unique(owner, return_inverse=True)[1].astype(np.int64)
