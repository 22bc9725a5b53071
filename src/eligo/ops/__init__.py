"""Pure tensor functions: no state, no I/O.

Conventions: masks are True where real; -1 in an index means nothing; a row never depends on other
rows or on its padding; scores and weights are float32, values keep their dtype.
"""

from eligo.ops.assignment import fold, soft_assignment, unfold
from eligo.ops.bipartite import Matching, bipartite_match, merge, unmerge
from eligo.ops.diverse import (
    distinctness,
    farthest_points,
    greedy_dpp,
    greedy_mmr,
    greedy_redundancy,
    nearest_other,
    ordered_dither,
)
from eligo.ops.masked import (
    align_left,
    align_right,
    gather,
    kept_mask,
    masked_log_softmax,
    masked_mean,
    masked_softmax,
)
from eligo.ops.maxsim import maxsim, maxsim_pieces
from eligo.ops.topk import (
    gumbel_noise,
    gumbel_top_k,
    relaxed_top_k,
    straight_through,
    straight_through_top_k,
    top_k,
    top_k_mask,
)

__all__ = [
    "Matching", "align_left", "align_right", "bipartite_match", "distinctness", "farthest_points",
    "fold", "gather", "greedy_dpp", "greedy_mmr", "greedy_redundancy", "gumbel_noise",
    "gumbel_top_k", "kept_mask", "masked_log_softmax", "masked_mean", "masked_softmax", "maxsim",
    "maxsim_pieces", "merge", "nearest_other", "ordered_dither", "relaxed_top_k", "soft_assignment",
    "straight_through", "straight_through_top_k", "top_k", "top_k_mask", "unfold", "unmerge",
]  # fmt: skip
