"""Maximal marginal relevance (Carbonell and Goldstein 1998), for the baseline and the sampler."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops


def greedy_mmr(
    relevance: Float[Tensor, " candidates"],
    vectors: Float[Tensor, "candidates dim"],
    shots: int,
    balance: float,
) -> Int[Tensor, " picks"]:
    """Pick the most relevant candidate, then greedily by MMR, without a similarity matrix.

    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    >>> greedy_mmr(torch.tensor([0.9, 0.89, 0.5]), vectors, 2, 0.5)
    tensor([0, 2])
    """
    free = torch.ones_like(relevance, dtype=torch.bool)
    redundancy = torch.full_like(relevance, -torch.inf)
    picks: list[Tensor] = []
    for _ in range(min(shots, len(relevance))):
        scores = balance * relevance
        if picks:
            scores = scores - (1 - balance) * redundancy
        pick = ops.top_k(scores if picks else relevance, 1, free)
        picks.append(pick)
        free = free & ~ops.kept_mask(pick, len(free))
        redundancy = torch.maximum(redundancy, vectors @ vectors[pick].squeeze(0))
    return torch.cat(picks) if picks else relevance.new_zeros(0, dtype=torch.int64)
