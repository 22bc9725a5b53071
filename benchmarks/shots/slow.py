"""Plain loops over steps or samples: the baseline of the speed suites, with the same numbers."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.shots.model.pointer import PointerSelector


def step_loop(
    scores: Float[Tensor, "batch candidates"], labels: Int[Tensor, "batch steps"], smoothing: float
) -> Float[Tensor, ""]:
    """Smoothed cross-entropy by masking what was picked before, step by step; distinct labels."""
    free = torch.ones_like(scores, dtype=torch.bool)
    total = scores.new_zeros(())
    for step in range(labels.shape[1]):
        label = labels[:, step : step + 1]
        log_p = scores.masked_fill(~free, -torch.inf).log_softmax(-1)
        mean = log_p.masked_fill(~free, 0.0).sum(-1) / free.sum(-1)
        own = log_p.gather(1, label).squeeze(1)
        total = total - ((1 - smoothing) * own + smoothing * mean).mean()
        free = free.scatter(1, label, False)
    return total / labels.shape[1]


def sample_loop(
    scores: Float[Tensor, "batch candidates"],
    labels: Int[Tensor, "batch steps"],
    *,
    smoothing: float,
    margin: float,
    weight: float,
) -> Float[Tensor, ""]:
    """Cross-entropy and corrected pairwise hinge (label scores only), one sample and step at a
    time; distinct labels."""
    total = scores.new_zeros(())
    for row in range(len(labels)):
        free = torch.ones_like(scores[row], dtype=torch.bool)
        unlabelled = torch.ones_like(free)
        unlabelled[labels[row]] = False
        for step in range(labels.shape[1]):
            label = int(labels[row, step])
            left = scores[row][free]
            place = free[:label].sum()
            ce = F.cross_entropy(left, place, label_smoothing=smoothing)
            hinge = F.relu(margin + scores[row][unlabelled] - scores[row, label]).mean()
            total = total + ce + weight * hinge
            free = free.clone()  # the gradient still needs the old one
            free[label] = False
    return total / labels.numel()


def static_scores(
    model: PointerSelector, query: Tensor, candidates: Tensor
) -> Float[Tensor, "batch candidates"]:
    """The logits of a model without state, before any pick."""
    query, candidates = (
        model.dropout(model.project(query)),
        model.dropout(model.project(candidates)),
    )
    logits = model.scale(model.query_proj(query).unsqueeze(1), model.cand_proj(candidates))
    return logits.squeeze(1)
