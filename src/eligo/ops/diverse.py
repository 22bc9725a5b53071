"""Selection of diverse sets: max-min distance, DPP, marginal relevance, density peaks, dithering.

`farthest_points` is Gonzalez' greedy solution of the max-min diversity problem (1985), started as
in DivPrune (Alvar et al. 2025) at the candidate farthest from all others. `greedy_dpp` is the fast
greedy MAP inference of a determinantal point process (Chen, Zhang and Zhou, NeurIPS 2018), by an
incremental Cholesky factor. The paper stops at the rank of the kernel; here, picks continue by the
diagonal, because budgets are exact. `greedy_mmr` is maximal marginal relevance (Carbonell and
Goldstein, SIGIR 1998). These loop over the picks and have no gradient. `greedy_redundancy` turns
the last one into a top-k with a gradient; `distinctness` is a one-pass alternative, from density
peaks (Rodriguez and Laio, Science 2014).
`ordered_dither` is Bayer's order of grid places (1973): any prefix of it covers the grid evenly.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.ops.masked import full_mask, gather
from eligo.ops.topk import budget_width

_DITHER_BITS = 10


def farthest_points(
    distances: Float[Tensor, "*batch candidates candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
) -> Int[Tensor, "*batch kept"]:
    """`argmax_i min_{j in S} d_ij`, k times; the first pick is `argmax_i min_{j != i} d_ij`.

    `distances` is symmetric; `k`, `mask` and `width` are those of `top_k`. In order of choice.

    >>> places = torch.tensor([0.0, 1.0, 5.0, 6.5])
    >>> farthest_points((places - places[:, None]).abs(), 3)
    tensor([2, 0, 3])
    """
    num_candidates = distances.shape[-1]
    width = budget_width("farthest_points", k, width, num_candidates)
    mask = _real(distances, mask)
    distances = distances.detach().float()
    free, nearest = mask, nearest_other(distances, mask)
    picks = []
    for step in range(min(width, num_candidates)):
        pick = torch.where(free, nearest, -torch.inf).argmax(-1, keepdim=True)
        to_pick = gather(distances, pick).squeeze(-2)
        nearest = to_pick if step == 0 else torch.minimum(nearest, to_pick)
        free = free.scatter(-1, pick, False)
        picks.append(pick)
    return _joined(picks, mask, k, width)


def greedy_dpp(
    kernel: Float[Tensor, "*batch candidates candidates"],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
    tolerance: float = 1e-5,
) -> Int[Tensor, "*batch kept"]:
    """`argmax_i det L_{S + i}`, k times; `L` is symmetric and positive semi-definite.

    A candidate whose gain `det L_{S + i} / det L_S` is at most `tolerance * L_ii` is spanned by the
    picks; when all are, the largest `L_ii` comes first. `k`, `mask`, `width`: see `top_k`.

    >>> vectors = torch.tensor([[2.0, 0.0], [1.9, 0.0], [0.0, 1.0]])
    >>> greedy_dpp(vectors @ vectors.T, 3)
    tensor([0, 2, 1])
    """
    num_candidates = kernel.shape[-1]
    width = budget_width("greedy_dpp", k, width, num_candidates)
    mask = _real(kernel, mask)
    kernel = kernel.detach().float()
    # A NaN in padding would reach real candidates as 0 * NaN.
    kernel = kernel.masked_fill(~(mask.unsqueeze(-1) & mask.unsqueeze(-2)), 0.0)
    diagonal = kernel.diagonal(dim1=-2, dim2=-1)
    num_steps = min(width, num_candidates)
    factor = kernel.new_zeros((*mask.shape[:-1], num_steps, num_candidates))  # Cholesky, by rows
    free, gain, picks = mask, diagonal, []
    for step in range(num_steps):
        grows = gain > tolerance * diagonal
        # Spanned candidates rank below the others, in the order of the diagonal.
        rank = torch.where(grows, gain, -1 / (1 + diagonal))
        pick = torch.where(free, rank, -torch.inf).argmax(-1, keepdim=True)
        free = free.scatter(-1, pick, False)
        picks.append(pick)
        done = factor[..., :step, :]
        spanned = gather(done.transpose(-1, -2), pick) @ done  # (*batch, 1, candidates)
        row = gather(kernel, pick) - spanned
        scale = gather(gain, pick).clamp_min(torch.finfo(gain.dtype).tiny).rsqrt()
        row = (row.squeeze(-2) * scale).masked_fill(~gather(grows, pick), 0.0)
        factor[..., step, :] = row
        gain = gain - row.square()
    return _joined(picks, mask, k, width)


def greedy_mmr(
    relevance: Float[Tensor, "*batch candidates"],
    vectors: Float[Tensor, "*batch candidates dim"],
    k: int | Int[Tensor, "*batch"],
    balance: float,
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
) -> Int[Tensor, "*batch kept"]:
    """`argmax_i l r_i - (1 - l) max_{j in S} v_i v_j`, k times; the first pick is `argmax_i r_i`.

    `balance` is l; `vectors` have length 1, and only their products with the picks are computed.
    `k`, `mask` and `width` are those of `top_k`. In order of choice.

    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    >>> greedy_mmr(torch.tensor([0.9, 0.89, 0.5]), vectors, 2, 0.5)
    tensor([0, 2])
    """
    num_candidates = relevance.shape[-1]
    width = budget_width("greedy_mmr", k, width, num_candidates)
    relevance, vectors = relevance.detach().float(), vectors.detach().float()
    if mask is not None:
        vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
    mask = full_mask(relevance, mask)
    free, scores, picks = mask, relevance, []
    redundancy = torch.full_like(relevance, -torch.inf)
    for step in range(min(width, num_candidates)):
        if step:
            to_pick = vectors @ gather(vectors, picks[-1]).transpose(-1, -2)
            redundancy = torch.maximum(redundancy, to_pick.squeeze(-1))
            scores = balance * relevance - (1 - balance) * redundancy
        pick = torch.where(free, scores, -torch.inf).argmax(-1, keepdim=True)
        free = free.scatter(-1, pick, False)
        picks.append(pick)
    return _joined(picks, mask, k, width)


def greedy_redundancy(
    relevance: Float[Tensor, "*batch candidates"],
    similarities: Float[Tensor, "*batch candidates candidates"],
    weight: float | Float[Tensor, ""],
    k: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    width: int | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """`max c_ij` over the picks j before i, where `argmax_i r_i - w max_{j in S} c_ij` picks.

    Candidates that are not among the k picks are compared with all of them; the first pick gets -1,
    the lowest cosine. For `w >= 0`, gains fall from pick to pick: the top-k of `r - w redundancy`
    is the greedy choice. Gradients reach `similarities` only. `k`, `mask`, `width`: see `top_k`.

    >>> cosines = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.0], [0.2, 0.0, 1.0]])
    >>> greedy_redundancy(torch.tensor([3.0, 2.9, 2.5]), cosines, 1.0, 2)
    tensor([-1.0000,  0.9000,  0.2000])
    """
    num_candidates = relevance.shape[-1]
    width = budget_width("greedy_redundancy", k, width, num_candidates)
    relevance, cosines = relevance.detach().float(), similarities.detach().float()
    weight = weight.detach() if isinstance(weight, Tensor) else weight
    limit = None if isinstance(k, int) else k.to(relevance.device, non_blocking=True).unsqueeze(-1)
    free = full_mask(relevance, mask)
    redundancy = torch.full_like(relevance, -1.0)
    nearest = torch.full_like(relevance, -1, dtype=torch.int64)
    for step in range(min(width, num_candidates)):
        scores = torch.where(free, relevance - weight * redundancy, -torch.inf)
        pick = scores.argmax(-1, keepdim=True)
        free = free.scatter(-1, pick, False)
        to_pick = gather(cosines, pick, padded=False).squeeze(-2)
        closer = free & (to_pick > redundancy)
        if limit is not None:
            closer = closer & (step < limit)
        redundancy = torch.where(closer, to_pick, redundancy)
        nearest = torch.where(closer, pick, nearest)
    found = gather(similarities.float(), nearest.unsqueeze(-1)).squeeze(-1)
    return torch.where(nearest < 0, -1.0, found)


def nearest_other(
    distances: Float[Tensor, "*batch candidates candidates"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """`min_{j != i} d_ij` over real j, in float32; infinite if there is no other.

    >>> nearest_other(torch.tensor([[0.0, 2.0, 3.0], [2.0, 0.0, 4.0], [3.0, 4.0, 0.0]]))
    tensor([2., 2., 3.])
    """
    mask = _real(distances, mask)
    num_candidates = mask.shape[-1]
    if num_candidates == 0:
        return distances.float().sum(-1)
    own = torch.eye(num_candidates, dtype=torch.bool, device=mask.device)
    others = mask.unsqueeze(-2) & ~own
    return torch.where(others, distances.float(), torch.inf).amin(-1)


def distinctness(
    scores: Float[Tensor, "*batch candidates"],
    similarities: Float[Tensor, "*batch candidates candidates"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch candidates"]:
    """`1 - max c_ij` over real j that score higher; 2 for the best, as cosines go down to -1.

    Among equal scores the lower index ranks higher, and a NaN below everything. Gradients reach
    `similarities` only.

    >>> cosines = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.0], [0.2, 0.0, 1.0]])
    >>> distinctness(torch.tensor([3.0, 2.0, 1.0]), cosines)
    tensor([2.0000, 0.1000, 0.8000])
    """
    if not scores.shape[-1]:
        return scores.float()
    ranked = scores.detach().nan_to_num(float("-inf"), float("inf"), float("-inf"))
    order = ranked.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    above = rank.unsqueeze(-2) < rank.unsqueeze(-1)
    if mask is not None:
        above = above & mask.unsqueeze(-2)
    return 1 - torch.where(above, similarities.float(), -1.0).amax(-1)


def ordered_dither(
    row: Int[Tensor, "*shape"], column: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """In (0, 1], highest at (0, 0), then on ever finer lattices; for grids up to 1024 x 1024.

    >>> place = torch.arange(16)
    >>> ordered_dither(place // 4, place % 4).mul(16).round().long().view(4, 4)
    tensor([[16,  8, 14,  6],
            [ 4, 12,  2, 10],
            [13,  5, 15,  7],
            [ 1,  9,  3, 11]])
    """
    if torch.compiler.is_compiling():  # a cached table would be a tensor of the tracer
        return _dither(row, column)
    last = 2**_DITHER_BITS - 1
    return _dither_table(row.device)[row & last, column & last]


@lru_cache
def _dither_table(device: torch.device) -> Float[Tensor, "side side"]:
    """`ordered_dither` of all places, as one look-up."""
    with torch.inference_mode(False):  # usable in training too
        place = torch.arange(2**_DITHER_BITS, device=device)
        return _dither(*torch.meshgrid(place, place, indexing="ij"))


def _dither(row: Tensor, column: Tensor) -> Tensor:
    rank = torch.zeros_like(row)
    for bit in range(_DITHER_BITS):
        x, y = (column >> bit) & 1, (row >> bit) & 1
        rank = 4 * rank + 2 * (x ^ y) + y
    return 1 - rank / 4**_DITHER_BITS


def _real(matrix: Tensor, mask: Tensor | None) -> Tensor:
    return matrix.new_ones(matrix.shape[:-1], dtype=torch.bool) if mask is None else mask


def _joined(picks: list[Tensor], mask: Tensor, k: int | Tensor, width: int) -> Tensor:
    """Join the picks of all steps, with -1 after the budget or the last real candidate of a row."""
    missing = mask.new_full((*mask.shape[:-1], width - len(picks)), -1, dtype=torch.int64)
    most = k if isinstance(k, int) else k.to(mask.device, non_blocking=True).unsqueeze(-1)
    limit = mask.sum(-1, keepdim=True).clamp_max(most)
    columns = torch.arange(width, device=mask.device)
    return torch.where(columns < limit, torch.cat([*picks, missing], -1), -1)
