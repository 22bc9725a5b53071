"""Pure tensor functions: no state, no I/O.

Conventions: masks are True where real; -1 in an index means nothing; a row never depends on its
batch mates or on its padding; what ranks or weighs is float32, what is moved keeps its dtype.
"""

from eligo.ops.assignment import fold, soft_assignment, unfold
from eligo.ops.bipartite import Matching, bipartite_match, merge, unmerge
from eligo.ops.diverse import (
    distinctness,
    farthest_points,
    greedy_dpp,
    nearest_other,
    ordered_dither,
)
from eligo.ops.late_interaction import maxsim, maxsim_pieces
from eligo.ops.masked import masked_log_softmax, masked_mean, masked_softmax
from eligo.ops.ragged import align_left, align_right, gather, kept_mask
from eligo.ops.relaxed import relaxed_top_k, straight_through, straight_through_top_k
from eligo.ops.topk import gumbel_noise, gumbel_top_k, top_k, top_k_mask

__all__ = [
    "Matching",
    "align_left",
    "align_right",
    "bipartite_match",
    "distinctness",
    "farthest_points",
    "fold",
    "gather",
    "greedy_dpp",
    "gumbel_noise",
    "gumbel_top_k",
    "kept_mask",
    "masked_log_softmax",
    "masked_mean",
    "masked_softmax",
    "maxsim",
    "maxsim_pieces",
    "merge",
    "nearest_other",
    "ordered_dither",
    "relaxed_top_k",
    "soft_assignment",
    "straight_through",
    "straight_through_top_k",
    "top_k",
    "top_k_mask",
    "unfold",
    "unmerge",
]
