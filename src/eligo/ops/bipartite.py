"""Bipartite soft matching: merge the most similar tokens (ToMe, Bolya et al. 2023).

Real tokens are split alternately into A and B; each A finds its most similar B, and the
`num_merged` closest pairs merge (several A may merge into one B). Changes from the paper: the
matching is returned as indices instead of closures, kept tokens stay in raster order, padding is
ignored wherever it is, and ties go to the lowest index.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.ops.masked import align_left, gather, kept_mask
from eligo.ops.topk import top_k


class Matching(NamedTuple):
    """Which tokens are kept, and which kept token each one was merged into."""

    kept: Int[Tensor, "*batch kept"]
    """Indices of the kept tokens, in raster order, padded with -1."""
    destination: Int[Tensor, "*batch tokens"]
    """For each token, its column in `kept`; -1 for padding."""


def bipartite_match(
    features: Float[Tensor, "*batch tokens dim"],
    num_merged: int | Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch tokens"] | None = None,
) -> Matching:
    """Match the `num_merged` most cosine-similar pairs of A x B and merge their A into their B.

    Every row keeps `tokens - num_merged`; a short row merges at most its A half. With one number
    per row, `kept` is as wide as the tokens (padded), so that no device sync is needed.

    >>> bipartite_match(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]]), 1)
    Matching(kept=tensor([1, 2, 3]), destination=tensor([0, 0, 1, 2]))
    """
    num_tokens = features.shape[-2]
    most = num_tokens // 2
    _check_num_merged(num_merged, num_tokens)
    num_kept = num_tokens - num_merged if isinstance(num_merged, int) else num_tokens
    if mask is None:
        mask = torch.ones(features.shape[:-1], dtype=torch.bool, device=features.device)
    own = torch.arange(num_tokens, device=features.device).expand(mask.shape)
    rank = mask.long().cumsum(-1) - 1

    # Real tokens first, so that the split into A and B ignores padding.
    order = align_left(mask)
    a_ids, b_ids = order[..., ::2], order[..., 1::2]
    if b_ids.shape[-1] == 0 or (isinstance(num_merged, int) and num_merged == 0):
        return Matching(order[..., :num_kept], rank.masked_fill(~mask, -1))
    units = torch.nn.functional.normalize(gather(features, order).float(), dim=-1)
    similarity = units[..., ::2, :] @ units[..., 1::2, :].transpose(-1, -2)  # (*batch, a, b)
    similarity = similarity.masked_fill((b_ids < 0).unsqueeze(-2), -torch.inf)
    best, partner = similarity.detach().max(-1)
    can_merge = (a_ids >= 0) & (b_ids[..., :1] >= 0)
    width = None if isinstance(num_merged, int) else most
    chosen = top_k(best, num_merged, can_merge, width=width)  # (*batch, merged), columns of A

    goes_from = torch.where(chosen < 0, -1, gather(a_ids, chosen))
    goes_to = gather(b_ids, gather(partner, chosen))
    keeps = mask & ~kept_mask(goes_from, num_tokens)
    # Merged tokens point at their partner, others at themselves; -1 writes to a spare column.
    target = torch.cat([own, own[..., :1]], -1)
    target = target.scatter(-1, torch.where(goes_from < 0, num_tokens, goes_from), goes_to)
    rank = keeps.long().cumsum(-1) - 1
    destination = rank.gather(-1, target[..., :num_tokens]).masked_fill(~mask, -1)
    return Matching(align_left(keeps, num_kept), destination)


def merge(
    values: Float[Tensor, "*batch tokens dim"],
    matching: Matching,
    sizes: Float[Tensor, "*batch tokens"] | None = None,
) -> tuple[Float[Tensor, "*batch kept dim"], Float[Tensor, "*batch kept"]]:
    """Size-weighted means of the matched tokens, and the new sizes (float32).

    `z_j = sum of z_i`, `y_j = sum of z_i x_i / z_j` over the tokens i whose destination is j.
    Pass the sizes to the next round, and `log z_j` to attention as a key bias.

    >>> matching = Matching(torch.tensor([0, 2]), torch.tensor([0, 0, 1]))
    >>> merge(torch.tensor([[1.0], [3.0], [5.0]]), matching)
    (tensor([[2.],
            [5.]]), tensor([2., 1.]))
    """
    kept, destination = matching
    num_kept = kept.shape[-1]
    real = destination >= 0
    weights = real.float() if sizes is None else sizes.float().masked_fill(~real, 0.0)
    slots = torch.where(real, destination, num_kept)  # padding goes to a spare slot
    new_sizes = weights.new_zeros((*kept.shape[:-1], num_kept + 1)).scatter_add(-1, slots, weights)
    weighted = values.float().masked_fill(~real.unsqueeze(-1), 0.0) * weights.unsqueeze(-1)
    sums = weighted.new_zeros((*kept.shape[:-1], num_kept + 1, values.shape[-1]))
    sums = sums.scatter_add(-2, slots.unsqueeze(-1).expand(weighted.shape), weighted)
    new_sizes, sums = new_sizes[..., :num_kept], sums[..., :num_kept, :]
    means = sums / torch.where(new_sizes > 0, new_sizes, 1.0).unsqueeze(-1)
    return means.to(values.dtype), new_sizes


def unmerge(
    values: Float[Tensor, "*batch kept dim"], matching: Matching
) -> Float[Tensor, "*batch tokens dim"]:
    """Copy each merged value back to its tokens; zeros for padding.

    >>> matching = Matching(torch.tensor([0, 2]), torch.tensor([0, 0, 1]))
    >>> unmerge(torch.tensor([[2.0], [5.0]]), matching)
    tensor([[2.],
            [2.],
            [5.]])
    """
    return gather(values, matching.destination)


def _check_num_merged(num_merged: int | Tensor, num_tokens: int) -> None:
    if isinstance(num_merged, int):
        valid = 0 <= num_merged <= num_tokens // 2
    else:
        within = (num_merged >= 0) & (num_merged <= num_tokens // 2)
        valid = not values_are_free(num_merged) or bool(within.all())
    if not valid:
        raise InputError(
            f"bipartite_match: got num_merged={num_merged} for {num_tokens} tokens; expected 0 to "
            f"{num_tokens // 2}, half of them: match and merge again to remove more"
        )
