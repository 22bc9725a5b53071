"""Losses of SEPS: alignment (equation 6) and the share of kept patches (equation 7).

Departures from the published losses (see `documented_ratio_loss`): a caption may be true of several
images (`positive_mask`); the ratio loss is `(rho - (mean D_s + mean D_d) / 2)^2` (equation 7 with
l1 = l2 = 1 aims at rho / 2) and is an error where D is an exact top-K, whose mean is constant.
`two_pass_loss` is the hard-negative loss with gradients for few pairs only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.errors import InputError
from eligo.losses import hard_negative_triplet
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.seps import CrossSparseAggrNet, PatchScores


def alignment_loss(
    scores: Float[Tensor, "images texts"],
    image_ids: Int[Tensor, " images"] | None = None,
    positive_mask: Bool[Tensor, "images texts"] | None = None,
    *,
    margin: float = 0.2,
    hardest: bool = True,
) -> Float[Tensor, ""]:
    """Equation 6: `sum_ij [m - S_ii + S_ij]+ + [m - S_jj + S_ij]+`, or the hardest j of each.

    Pair i is image i with text i; `image_ids` removes other texts of the same image from the
    negatives. Or `positive_mask`: every marked pair is a positive and never a negative.

    >>> alignment_loss(torch.tensor([[1.0, 0.9], [0.0, 1.0]])).round(decimals=4)
    tensor(0.2000)
    """
    positive, neutral = _roles(scores.shape, image_ids, positive_mask, scores.device)
    return hard_negative_triplet(
        scores, positive, neutral_mask=neutral, margin=margin, hardest=hardest
    )


def contrastive_loss(
    scores: Float[Tensor, "images texts"],
    image_ids: Int[Tensor, " images"] | None = None,
    positive_mask: Bool[Tensor, "images texts"] | None = None,
    *,
    scale: Float[Tensor, ""] | float = 1.0,
) -> Float[Tensor, ""]:
    """InfoNCE both ways: the cross-entropy of the true pairs in each row and each column, added.

    Pairs are as in `alignment_loss`; logits are `scale * scores`. A row with several true pairs
    counts their mean.

    >>> contrastive_loss(torch.eye(2), scale=100.0) < 1e-6
    tensor(True)
    """
    positive, neutral = _roles(scores.shape, image_ids, positive_mask, scores.device)
    logits = scores * scale
    if neutral is not None:
        logits = logits.masked_fill(neutral, -torch.inf)
    losses = []
    for axis in (0, 1):
        log_p = logits.log_softmax(axis).masked_fill(~positive, 0.0)
        count = positive.sum(axis)
        each = -log_p.sum(axis) / count.clamp_min(1)
        losses.append(each[count > 0].mean())
    return torch.stack(losses).sum()


def ratio_loss(kept_ratio: Float[Tensor, ""], target: float) -> Float[Tensor, ""]:
    """Equation 7 for the mean share: `(rho - (mean D_s + mean D_d) / 2)^2`, from `kept_ratio`.

    >>> ratio_loss(torch.tensor(0.75), 0.5)
    tensor(0.0625)
    """
    return (target - kept_ratio) ** 2


def documented_ratio_loss(
    masks: Float[Tensor, "..."] | tuple[Float[Tensor, "..."], ...],
    target: float,
    sparse_weight: float = 1.0,
    dense_weight: float = 1.0,
) -> Float[Tensor, ""]:
    """`l1 (mean D_s - rho)^2 + l2 (mean D_d - rho)^2`, or `(mean - rho)^2` of a single mask.

    >>> documented_ratio_loss((torch.ones(4), torch.zeros(4)), 0.5)
    tensor(0.5000)
    """
    if isinstance(masks, Tensor):
        return (masks.mean() - target) ** 2
    weights = (sparse_weight, dense_weight)[: len(masks)]
    terms = [w * (mask.mean() - target) ** 2 for w, mask in zip(weights, masks, strict=True)]
    return torch.stack(terms).sum()


@dataclass(frozen=True)
class PatchLoss:
    """`L_align + ratio_weight * L_ratio` of the network's output in training.

    `ratio_weight` needs `decision="bernoulli"` (or the published network, where it is 2).
    """

    margin: float = 0.2
    hardest: bool = True
    ratio_weight: float = 0.0
    target_ratio: float = 0.5

    def check(self, net: CrossSparseAggrNet) -> None:
        """Raise for a ratio loss without a gradient."""
        if self.ratio_weight and net.decision == "topk" and not net.compat:
            raise InputError(
                f"ratio_weight: got {self.ratio_weight} with decision='topk', which keeps an exact "
                "share, so that this loss is a constant; expected ratio_weight=0, or "
                "decision='bernoulli'"
            )

    def __call__(
        self,
        net: CrossSparseAggrNet,
        output: PatchScores | tuple[Tensor, Tensor | tuple[Tensor, ...]],
        image_ids: Int[Tensor, " images"] | None = None,
        positive_mask: Bool[Tensor, "images texts"] | None = None,
    ) -> dict[str, Tensor]:
        """Return the losses `total`, `align` and `ratio`."""
        self.check(net)
        if isinstance(output, PatchScores):
            scores, ratio = output.scores, ratio_loss(output.kept_ratio, self.target_ratio)
        else:
            scores, ratio = output[0], documented_ratio_loss(output[1], self.target_ratio)
        align = alignment_loss(
            scores, image_ids, positive_mask, margin=self.margin, hardest=self.hardest
        )
        return {"total": align + self.ratio_weight * ratio, "align": align, "ratio": ratio}


def two_pass_loss(
    net: CrossSparseAggrNet,
    images: Images,
    texts: Texts,
    image_ids: Int[Tensor, " images"] | None = None,
    positive_mask: Bool[Tensor, "images texts"] | None = None,
    *,
    margin: float = 0.2,
    gather_rows: Callable[[Tensor], Tensor] | None = None,
    own_rows: slice = slice(None),
) -> tuple[Float[Tensor, ""], Float[Tensor, "all_images texts"]]:
    """Return `alignment_loss` with hardest negatives, and the scores, with gradients of few pairs.

    All pairs are scored without gradient; then only those that the loss depends on, with gradient:
    the positives and the hardest negative of each row and column, at most 3 B of B x B pairs. Same
    loss, same gradient. `images, texts = net.sides(...)`.

    With several processes each scores its `own_rows`, and `gather_rows` returns all rows; ids and
    mask are those of the whole batch.
    """
    if net.decision == "bernoulli" and net.training:
        raise InputError(
            "two_pass_loss: decision='bernoulli' draws other patches in the second pass; expected "
            "decision='topk', or alignment_loss of one pass"
        )
    with torch.no_grad():
        own = net.match(images, texts).scores
    scores = own if gather_rows is None else gather_rows(own)
    positive, neutral = _roles(scores.shape, image_ids, positive_mask, scores.device)
    negative = ~positive if neutral is None else ~(positive | neutral)
    used = positive | _hardest(scores, negative) | _hardest(scores.T, negative.T).T
    rows, columns = used[own_rows].nonzero(as_tuple=True)
    live = own.index_put((rows, columns), net.match_pairs(images, texts, rows, columns))
    live = live if gather_rows is None else gather_rows(live)
    # All other pairs are neutral, so that rounding cannot make one of them the hardest.
    loss = hard_negative_triplet(live, positive, neutral_mask=~used, margin=margin)
    return loss, scores


def _hardest(scores: Tensor, negative: Tensor) -> Tensor:
    """Return a mask of the best-scored negative of each row."""
    best = torch.where(negative, scores, -torch.inf).argmax(1, keepdim=True)
    return torch.zeros_like(negative).scatter(1, best, True) & negative


def _roles(
    shape: torch.Size, image_ids: Tensor | None, positive: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return masks of the positives, and of pairs that are neither positive nor negative."""
    if positive is not None:
        if image_ids is not None:
            raise InputError("got image_ids and positive_mask; expected one of them")
        return positive, None
    if shape[0] != shape[1]:
        raise InputError(
            f"got {tuple(shape)} scores without a positive_mask; expected a square matrix whose "
            "diagonal are the true pairs, or the mask"
        )
    diagonal = torch.eye(shape[0], dtype=torch.bool, device=device)
    if image_ids is None:
        return diagonal, None
    same = image_ids.unsqueeze(0) == image_ids.unsqueeze(1)
    return diagonal, same & ~diagonal
