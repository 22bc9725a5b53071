"""The algebra of the fast kernels: mixing matrices, and cosines of words with mixed patches.

- One mixing matrix M (tokens x patches) per pair folds the patches: its rows are the slots'
  `D e^l / sum D e^l` (both selections of the paper's version added) and, last, the extra token's
  `(1 - D) e^s / sum (1 - D) e^s`. So tokens are `M X`.
- Words times tokens is `w (M X)^T`, or `(w X^T) M^T` with squared token norms
  `rowsum((M G) * M)`, `G = X X^T`: whichever costs less.

Axes: R images, J texts for each of them, N patches, S slots, P tokens, L words, C width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from eligo.ops._checks import values_are_free
from eligo.patches.kernels.interface import PatchDecision
from eligo.patches.model.functional import weighted_softmax, wide

SMALLEST_SUM = 1e-20  # a smaller softmax sum is computed again from its own maximum


def mixing_matrix(
    logits: tuple[Float[Tensor, "images slots patches"], ...],
    decisions: tuple[PatchDecision, ...],
    extra: Float[Tensor, "images texts patches"] | None,
) -> Float[Tensor, "images texts tokens patches"]:
    """Return M: the slots of one selection or the sum of two, then the extra token, if any."""
    has_extra = extra is not None
    slots = [
        _slot_weights(part, decision.live, has_extra)
        for part, decision in zip(logits, decisions, strict=True)
    ]
    mixing = sum(slots[1:], slots[0])
    if has_extra:
        mixing[:, :, -1] = extra
    return mixing


def _slot_weights(logits: Tensor, live: Tensor, has_extra: bool) -> Tensor:
    """Return `D e^l / sum D e^l`, then a row of zeros for the extra token: (R, J, P, N)."""
    if not values_are_free(logits):  # to detect underflow would need a device sync
        weights = weighted_softmax(logits.unsqueeze(1), live.unsqueeze(2))
        return F.pad(weights, (0, 0, 0, int(has_extra)))
    powers = (logits - logits.amax(-1, keepdim=True).detach()).exp()
    total = live @ powers.transpose(1, 2)  # (R, J, S)
    powers, total = F.pad(powers, (0, 0, 0, int(has_extra))), F.pad(total, (0, int(has_extra)))
    underflows = total < SMALLEST_SUM
    scale = torch.where(underflows, 1.0, total).reciprocal()
    weights = live.unsqueeze(2) * powers.unsqueeze(1) * scale.unsqueeze(-1)
    underflows = underflows[..., : logits.shape[1]]
    if bool(underflows.any()):  # the kept patches underflow relative to a dropped one
        row, text, slot = underflows.nonzero(as_tuple=True)
        exact = weighted_softmax(logits[row, slot], live[row, text])
        weights = weights.index_put((row, text, slot), exact)
    return weights


def extra_weights(
    decisions: tuple[PatchDecision, ...], mask: Bool[Tensor, "images patches"] | None
) -> Float[Tensor, "images texts patches"]:
    """Return the extra token's row of M, of one selection or the mean of two."""
    return mean_weights([dropped_weights(decision, mask) for decision in decisions])


def mean_weights(
    weights: list[Float[Tensor, "images _ patches"]],
) -> Float[Tensor, "images texts patches"]:
    """Return the mean of the extra tokens of one or two selections."""
    return weights[0] if len(weights) == 1 else torch.stack(weights).mean(0)


def dropped_weights(
    decision: PatchDecision, mask: Bool[Tensor, "images patches"] | None
) -> Float[Tensor, "images texts patches"]:
    """Return `(1 - D) e^s / sum (1 - D) e^s`; zeros where nothing is dropped."""
    dropped = 1 - decision.live
    if mask is not None:
        dropped = dropped * mask.unsqueeze(1)
    powers = dropped * decision.score.exp()  # scores are small sums of cosines: nothing overflows
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def mixed_cosines(
    mixing: Float[Tensor, "images mixed tokens patches"],
    patches: Float[Tensor, "images patches dim"],
    words: Float[Tensor, "rows texts words dim"],
) -> Float[Tensor, "images texts words tokens"]:
    """Return cosines of unit words with the tokens `M X`.

    `mixed` is texts, or 1 where an image has the same tokens for all of them; `rows` is images, or
    1 where all images are matched with the same texts.
    """
    mixing = mixing.to(patches.dtype)
    num_mixed, num_tokens, num_patches = mixing.shape[1:]
    num_texts, num_words, width = words.shape[1:]
    sizes = (num_patches, width, num_words, num_tokens)
    if num_mixed < num_texts or not prefers_gram(*sizes, num_texts):
        tokens = mixing.flatten(1, 2) @ patches  # (R, J * P, C)
        return token_cosines(tokens.unflatten(1, (num_mixed, num_tokens)), words)
    words = words.to(patches.dtype).flatten(1, 2)  # (1 or R, J * L, C)
    products = (patches @ words.transpose(1, 2)).unflatten(2, (num_texts, num_words))
    cosines = mixing @ products.transpose(1, 2)  # (R, J, P, N) @ (R, J, N, L)
    gram = patches @ patches.transpose(1, 2)  # (R, N, N)
    spread = (mixing.flatten(1, 2) @ gram).view_as(mixing)
    norms = (wide(spread) * mixing).sum(-1).clamp_min(1e-24).sqrt()  # (R, J, P)
    return (wide(cosines) / norms.unsqueeze(-1)).transpose(2, 3)


def token_cosines(
    tokens: Float[Tensor, "images mixed tokens dim"],
    words: Float[Tensor, "rows texts words dim"],
) -> Float[Tensor, "images texts words tokens"]:
    """Return cosines of unit words with tokens of any length."""
    words = words.to(tokens.dtype)
    norms = torch.linalg.vector_norm(wide(tokens), dim=-1).clamp_min(1e-12)
    if tokens.shape[1] == words.shape[1]:
        cosines = words @ tokens.transpose(2, 3)
    else:  # the same tokens for all texts: one product over all words
        cosines = words.flatten(1, 2) @ tokens.squeeze(1).transpose(1, 2)  # (R, J * L, P)
        cosines = cosines.unflatten(1, words.shape[1:3])
    return wide(cosines) / norms.unsqueeze(2)


def prefers_gram(
    num_patches: int, width: int, num_words: int, num_tokens: int, num_texts: int | None = None
) -> bool:
    """Whether `(w X^T) M^T` and norms from `G = X X^T` cost less than `w (M X)^T`.

    G is computed once for `num_texts` texts; None: for so many that its cost is negligible.

    >>> prefers_gram(196, 512, 28, 40), prefers_gram(196, 512, 29, 40)
    (True, False)
    >>> prefers_gram(196, 512, 13, 40, num_texts=1)
    False
    """
    gram = num_patches * (width * num_words + num_tokens * (num_words + num_patches))
    if num_texts is not None:
        gram += num_patches**2 * width // max(1, num_texts)
    return gram < num_tokens * width * (num_patches + num_words)
