"""Ranking metrics of a selector against a teacher's choices: one value for each row.

NaN where a metric does not apply (no label, constant scores); means leave it out.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo import ops
from eligo.shots.model.losses import spread_beam_scores

HEALTHY_STD = (0.8, 1.5)
"""The range of `logits_std` that the published V3 design calls healthy."""


def label_ranks(
    logits: Float[Tensor, "*batch candidates"], labels: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return ranks from 1; ties go to the lower index; NaN without a label, inf where masked.

    >>> label_ranks(torch.tensor([[2.0, 3.0, 2.0]]), torch.tensor([2]))
    tensor([3.])
    """
    own = ops.gather(logits, labels.unsqueeze(-1))
    index = torch.arange(logits.shape[-1], device=logits.device)
    above = (logits > own) | ((logits == own) & (index < labels.unsqueeze(-1)))
    ranks = 1.0 + above.sum(-1)
    ranks = torch.where(own.squeeze(-1) == -torch.inf, torch.inf, ranks)
    return torch.where(labels < 0, torch.nan, ranks)


def step_hits(
    logits: Float[Tensor, "batch steps candidates"], labels: Int[Tensor, "batch steps"], k: int
) -> Float[Tensor, " batch"]:
    """Return the share of a row's steps whose label is among the k best available."""
    ranks = label_ranks(logits, labels)
    hits = torch.where(ranks.isnan(), torch.nan, (ranks <= k).float())
    return hits.nanmean(-1)


def reciprocal_rank(
    logits: Float[Tensor, "batch candidates"], labels: Int[Tensor, "batch steps"]
) -> Float[Tensor, " batch"]:
    """Return the reciprocal rank of the first label by the first step's logits."""
    return 1 / label_ranks(logits, labels[:, 0])


def ndcg(
    logits: Float[Tensor, "batch candidates"], scores: Float[Tensor, "batch candidates"], k: int
) -> Float[Tensor, " batch"]:
    """Return NDCG@k of the first step; gains are the teacher's scores, scaled to 0..1 per row.

    Candidates without a score are left out. Discount 1 / log2(rank + 1).

    >>> ndcg(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.5, 0.1, 0.3]]), 1)
    tensor([1.])
    """
    real = scores.isfinite() & (logits > -torch.inf)
    low = torch.where(real, scores, torch.inf).amin(-1, keepdim=True)
    high = torch.where(real, scores, -torch.inf).amax(-1, keepdim=True)
    gains = torch.where(real, (scores - low) / (high - low), 0.0)
    return torch.where((high > low).squeeze(-1), _ndcg(logits, gains, real, k), torch.nan)


def ndcg_labels(
    logits: Float[Tensor, "batch candidates"],
    labels: Int[Tensor, "batch steps"],
    scores: Float[Tensor, "batch steps"],
    k: int,
) -> Float[Tensor, " batch"]:
    """Return NDCG@k of the first step where only the labels have scores, which are their gains.

    All other candidates have gain 0, and so have labels without a score or with one below 0. NaN if
    no gain is above 0.

    >>> label, score = torch.tensor([[2]]), torch.tensor([[0.5]])
    >>> ndcg_labels(torch.tensor([[1.0, 3.0, 2.0]]), label, score, 2)
    tensor([0.6309])
    """
    real = logits > -torch.inf
    gains = spread_beam_scores(labels, scores, logits.shape[-1])[:, 0]
    gains = torch.where(real & gains.isfinite(), gains, 0.0).clamp_min(0.0)
    return torch.where((gains > 0).any(-1), _ndcg(logits, gains, real, k), torch.nan)


def _ndcg(logits: Tensor, gains: Tensor, real: Tensor, k: int) -> Tensor:
    discounts = 1 / torch.arange(2, k + 2, device=logits.device).log2()

    def dcg(ranking: Tensor) -> Tensor:
        best = ops.top_k(ranking, k, real)
        return (ops.gather(gains, best) * discounts).sum(-1)

    return dcg(logits) / dcg(gains)


def set_recall(
    picks: Int[Tensor, "batch steps"], labels: Int[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """Return the share of a row's labels that were picked, at any step."""
    hits = (labels.unsqueeze(-1) == picks.unsqueeze(-2)).any(-1)
    real = labels >= 0
    return torch.where(real.any(-1), (hits & real).sum(-1) / real.sum(-1), torch.nan)


def logits_std(logits: Float[Tensor, "batch candidates"]) -> Float[Tensor, " batch"]:
    """Return the standard deviation over the first step's candidates; see `HEALTHY_STD`."""
    real = logits > -torch.inf
    values = torch.where(real, logits, 0.0)
    centred = values - ops.masked_mean(values, real).unsqueeze(-1)
    std = ops.masked_mean(centred.square(), real).sqrt()
    return torch.where(real.sum(-1) > 1, std, torch.nan)
