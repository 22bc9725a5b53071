"""Losses over masked candidates: listwise, pairwise, triplet and adversarial.

Conventions: float32; masks are True where real; a loss over candidates returns one value per row
(`*batch`). A row without anything to learn from (no real candidate, an ignored label, no negative)
gives 0 with gradient 0; reduce with `ops.masked_mean` to leave such rows out. All losses are
finite under any mask.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.ops.masked import full_mask

_ABSENT = -1e30  # a missing candidate: exp gives 0, and unlike with -inf sums stay finite
_ALL_TRIPLETS = 2**24  # most triplets to hold in memory, to save a device sync


def smoothed_cross_entropy(
    logits: Float[Tensor, "*batch classes"],
    labels: Int[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch classes"] | None = None,
    smoothing: float = 0.0,
) -> Float[Tensor, "*batch"]:
    """`(1 - e) (-log p_y) + e mean_valid(-log p)`, over the valid classes only.

    A label of -1, or one that the mask excludes, is ignored: its row gives 0.

    >>> smoothed_cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.])
    """
    _check_smoothing(smoothing)
    _check_indices(labels, logits.shape[-1], "labels")
    mask = full_mask(logits, mask)
    log_p = ops.masked_log_softmax(logits, mask).masked_fill(~mask, 0.0)
    label = labels.unsqueeze(-1)
    is_valid = ops.gather(mask, label).squeeze(-1)
    loss = -(1 - smoothing) * ops.gather(log_p, label).squeeze(-1)
    if smoothing:
        loss = loss - smoothing * ops.masked_mean(log_p, mask)
    return torch.where(is_valid, loss, 0.0)


def plackett_luce(
    scores: Float[Tensor, "*batch candidates"],
    order: Int[Tensor, "*batch steps"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    smoothing: float = 0.0,
) -> Float[Tensor, "*batch steps"]:
    """Per step of `order`, the cross-entropy of its pick among the candidates not yet picked.

    `-log(exp(s_{y_t}) / sum over i not in y_<t of exp(s_i))`, smoothed as
    `smoothed_cross_entropy`. A step is ignored (0, and picks nothing) if its label is -1, masked
    or picked before. Needs no (steps, candidates) matrix: logsumexp over the candidates that are
    never picked, then cumulatively over the picks from the last to the first.

    >>> plackett_luce(torch.zeros(3), torch.tensor([2, 0])).exp()
    tensor([3., 2.])
    """
    _check_smoothing(smoothing)
    _check_indices(order, scores.shape[-1], "order")
    scores = scores.float()
    mask = full_mask(scores, mask)
    repeated = (order.unsqueeze(-1) == order.unsqueeze(-2)).tril(-1).any(-1)
    is_valid = ops.gather(mask, order) & ~repeated
    picks = torch.where(is_valid, order, -1)
    rest = mask & ~ops.kept_mask(picks, scores.shape[-1])
    picked = ops.gather(scores, picks)

    normaliser = _with_rest(
        torch.where(is_valid, picked, _ABSENT),
        torch.logsumexp(F.pad(torch.where(rest, scores, _ABSENT), (0, 1), value=_ABSENT), -1),
    )
    loss = _from_the_end(torch.logcumsumexp, normaliser) - (1 - smoothing) * picked
    if smoothing:
        total = _with_rest(picked, torch.where(rest, scores, 0.0).sum(-1))
        count = _with_rest(is_valid.float(), rest.sum(-1).float())
        mean = _from_the_end(torch.cumsum, total) / _from_the_end(torch.cumsum, count).clamp_min(1)
        loss = loss - smoothing * mean
    return torch.where(is_valid, loss, 0.0)


def list_mle(
    scores: Float[Tensor, "*batch candidates"],
    order: Int[Tensor, "*batch steps"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
) -> Float[Tensor, "*batch"]:
    """ListMLE (Xia et al. 2008): `-log P(order | scores)` under Plackett-Luce, truncated.

    `order` names the best candidates, best first; those it does not name rank below, in no order.

    >>> list_mle(torch.zeros(3), torch.tensor([2, 0])).exp()
    tensor(6.)
    """
    return plackett_luce(scores, order, mask).sum(-1)


def listwise_kl(
    logits: Float[Tensor, "*batch candidates"],
    target: Float[Tensor, "*batch candidates"],
    mask: Bool[Tensor, "*batch candidates"] | None = None,
    *,
    reverse: bool = False,
) -> Float[Tensor, "*batch"]:
    """`KL(target || p) = sum t log(t / p)`, or reversed `KL(p || target) = sum p log(p / t)`.

    `p` is the softmax of `logits` over the mask; `target` holds probabilities and is not
    renormalised. The forward form is mode-covering, the reversed one mode-seeking (a target of 0
    counts as the smallest float32).

    >>> listwise_kl(torch.zeros(2), torch.tensor([1.0, 0.0])).exp()
    tensor(2.)
    """
    mask = full_mask(logits, mask)
    log_p = ops.masked_log_softmax(logits, mask).masked_fill(~mask, 0.0)
    target = target.float()
    if reverse:
        log_target = target.clamp_min(torch.finfo(torch.float32).tiny).log()
        terms = log_p.exp() * (log_p - log_target)
    else:
        terms = torch.xlogy(target, target) - target * log_p
    return torch.where(mask, terms, 0.0).sum(-1)


def pairwise_hinge(
    positive: Float[Tensor, "*batch"],
    negatives: Float[Tensor, "*batch negatives"],
    mask: Bool[Tensor, "*batch negatives"] | None = None,
    *,
    margin: float = 1.0,
    hardest: bool = False,
) -> Float[Tensor, "*batch"]:
    """Mean over negatives of `max(0, margin + s_n - s_p)`; `hardest`: only the largest.

    >>> pairwise_hinge(torch.tensor(2.0), torch.tensor([0.0, 1.5]))
    tensor(0.2500)
    """
    mask = full_mask(negatives, mask)
    negatives = torch.where(mask, negatives.float(), 0.0)
    violation = F.relu(margin + negatives - positive.float().unsqueeze(-1))
    if not hardest:
        return ops.masked_mean(violation, mask)
    # The padded 0 is the minimum of the hinge, so rows without a negative give 0.
    return F.pad(torch.where(mask, violation, 0.0), (0, 1)).max(-1).values


def pairwise_logistic(
    positive: Float[Tensor, "*batch"],
    negatives: Float[Tensor, "*batch negatives"],
    mask: Bool[Tensor, "*batch negatives"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Mean over negatives of `log(1 + exp(s_n - s_p))` (RankNet, Burges et al. 2005).

    >>> pairwise_logistic(torch.tensor(0.0), torch.zeros(3)).exp()
    tensor(2.)
    """
    mask = full_mask(negatives, mask)
    negatives = torch.where(mask, negatives.float(), 0.0)  # the gradient of softplus(NaN) is NaN
    return ops.masked_mean(F.softplus(negatives - positive.float().unsqueeze(-1)), mask)


def hard_negative_triplet(
    similarity: Float[Tensor, "images texts"],
    positive_mask: Bool[Tensor, "images texts"] | None = None,
    *,
    neutral_mask: Bool[Tensor, "images texts"] | None = None,
    margin: float = 0.2,
    hardest: bool = True,
) -> Float[Tensor, ""]:
    """Sum over positive pairs (i, j) of `[m - S_ij + S_ik]+` and `[m - S_ij + S_kj]+`.

    k runs over the negatives of row i and of column j: the hardest one (VSE++, Faghri et al.
    2018), or all of them. Every pair that `positive_mask` marks (default: the diagonal) is a
    positive and never a negative; a neutral pair is neither (another caption of the same image).

    >>> hard_negative_triplet(torch.tensor([[1.0, 0.9], [0.0, 1.0]])).round(decimals=4)
    tensor(0.2000)
    """
    similarity = similarity.float()
    if positive_mask is None:
        if similarity.shape[0] != similarity.shape[1]:
            raise InputError(
                f"hard_negative_triplet: got {tuple(similarity.shape)} similarities without a "
                "positive_mask; expected a square matrix (positives on its diagonal), or the mask"
            )
        positive_mask = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    negative = ~positive_mask if neutral_mask is None else ~(positive_mask | neutral_mask)
    total = similarity.new_zeros(())
    for matrix, positives, negatives in (
        (similarity, positive_mask, negative),
        (similarity.T, positive_mask.T, negative.T),
    ):
        total = total + _triplet_rows(matrix, positives, negatives, margin, hardest)
    return total


def adversarial_generator_loss(fake_logits: Float[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Non-saturating: `BCE(D(fake), 1) = mean softplus(-d)`; keep D's weights frozen meanwhile.

    >>> adversarial_generator_loss(torch.zeros(3)).exp()
    tensor(2.)
    """
    return F.softplus(-fake_logits.float()).mean()


def adversarial_discriminator_losses(
    real_logits: Float[Tensor, "*real"], fake_logits: Float[Tensor, "*fake"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """`BCE(D(real), 1)` and `BCE(D(fake), 0)`, to be summed; detach D's inputs, not its logits.

    >>> sum(adversarial_discriminator_losses(torch.zeros(3), torch.zeros(3))).exp()
    tensor(4.)
    """
    return F.softplus(-real_logits.float()).mean(), F.softplus(fake_logits.float()).mean()


def _triplet_rows(
    similarity: Tensor, positives: Tensor, negatives: Tensor, margin: float, hardest: bool
) -> Tensor:
    """Return the sum of violations of all positives against the negatives of their row."""
    if hardest:
        # One -inf beyond the row: without a negative the hinge is 0.
        padded = F.pad(torch.where(negatives, similarity, -torch.inf), (0, 1), value=-torch.inf)
        violation = F.relu(margin - similarity + padded.max(-1, keepdim=True).values)
        return torch.where(positives, violation, 0.0).sum()
    if similarity.numel() * similarity.shape[1] <= _ALL_TRIPLETS and not values_are_free(positives):
        # All (row, positive, negative): counting the positives would wait for the device.
        violation = F.relu(margin - similarity.unsqueeze(2) + similarity.unsqueeze(1))
        return torch.where(positives.unsqueeze(2) & negatives.unsqueeze(1), violation, 0.0).sum()
    rows, columns = positives.nonzero(as_tuple=True)
    violation = F.relu(margin - similarity[rows, columns].unsqueeze(-1) + similarity[rows])
    return torch.where(negatives[rows], violation, 0.0).sum()


def _with_rest(per_step: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([per_step, rest.unsqueeze(-1)], -1)  # (*batch, steps + 1)


def _from_the_end(cumulate, values: Tensor) -> Tensor:
    """Cumulate from the last column to the first, and drop the last: (*batch, steps)."""
    return cumulate(values.flip(-1), -1).flip(-1)[..., :-1]


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise InputError(f"smoothing: got {smoothing}, expected a share in [0, 1), e.g. 0.1")


def _check_indices(indices: Tensor, num_candidates: int, name: str) -> None:
    if not values_are_free(indices) or not indices.numel():
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -1 or high >= num_candidates:
        raise InputError(
            f"{name}: got values from {low} to {high}, expected [0, {num_candidates}), or -1 to "
            "ignore"
        )
