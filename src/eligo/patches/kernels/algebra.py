"""The algebra of the fast kernels: mixing matrices, and cosines of words with mixed patches.

- One mixing matrix M (tokens x patches) per pair folds the patches: its rows are the slots'
  `D e^l / sum D e^l` (both selections of the paper's version added) and, last, the extra token's
  `(1 - D) e^s / sum (1 - D) e^s`. So tokens are `M X`.
- Words times tokens is `w (M X)^T`, or `(w X^T) M^T` with squared token norms
  `rowsum((M G) * M)`, `G = X X^T`: whichever costs less.

Axes: R images, J texts for each of them, N patches, S slots, P tokens, L words, C width.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from eligo.ops._checks import values_are_free
from eligo.patches.kernels.interface import PatchDecision
from eligo.patches.model.functional import LARGEST_EXPONENT, weighted_softmax, wide

_SMALL_ON_A_CPU = 3
"""Small products run at a third of the speed of large ones there, or less."""
SMALLEST_SUM = 1e-20  # a smaller softmax sum is computed again from its own maximum


def mixing_matrix(
    logits: tuple[Float[Tensor, "images slots patches"], ...],
    decisions: tuple[PatchDecision, ...],
    extra: Float[Tensor, "images texts patches"] | None,
    dtype: torch.dtype | None = None,
    *,
    any_empty: bool = True,
) -> Float[Tensor, "images texts tokens patches"]:
    """Return M: the slots of one selection or the sum of two, then the extra token, if any.

    `dtype`: in which M is multiplied; a wider one may be returned. None: that of the logits.
    `any_empty`: whether a selection may be empty.
    """
    has_extra = extra is not None
    if not values_are_free(logits[0]):  # to detect underflow would need a device sync
        lives = [decision.live for decision in decisions]
        found: Any = _Mixing.apply(dtype, any_empty, extra, *logits, *lives)
        return found
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


class _Mixing(torch.autograd.Function):
    """M in a given dtype, with the gradients of `weighted_softmax`, in few passes over memory.

    M is by far the largest tensor of a training step. Its softmaxes are computed again in the
    backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype | None, any_empty: bool, extra: Tensor | None, *given: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*given)
        ctx.any_empty = any_empty
        half = len(given) // 2
        num_slots, (rows, texts, num_patches) = given[0].shape[1], given[half].shape
        size = (rows, texts, num_slots + (extra is not None), num_patches)
        mixing = given[0].new_empty(size, dtype=dtype)
        parts = [_shares(*pair, any_empty) for pair in zip(given[:half], given[half:], strict=True)]
        mixing[:, :, :num_slots] = parts[0] if half == 1 else parts[0].add_(parts[1])
        if extra is not None:
            mixing[:, :, -1] = extra
        return mixing

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        needs_extra, *needs = ctx.needs_input_grad[2:]
        given, half = ctx.saved_tensors, len(needs) // 2
        d_slots = gradient[:, :, : given[0].shape[1]]
        found: list[Tensor | None] = [None] * len(needs)
        for net, (logits, live) in enumerate(zip(given[:half], given[half:], strict=True)):
            shares = _shares(logits, live, ctx.any_empty)
            centred = d_slots - (d_slots * shares).sum(-1, keepdim=True)
            if needs[half + net]:
                # What a dropped patch would weigh: `e^(l - best) / sum`, bounded.
                best = torch.where((live > 0).unsqueeze(2), logits.unsqueeze(1), -torch.inf)
                best, largest = best.amax(-1, keepdim=True), shares.amax(-1, keepdim=True)
                best = torch.where(largest > 0, best, torch.inf)
                weights = (logits.unsqueeze(1) - best).clamp_max_(LARGEST_EXPONENT).exp_()
                found[half + net] = weights.mul_(largest).mul_(centred).sum(2)
            if needs[net]:
                found[net] = shares.mul_(centred).sum(1)
        return None, None, gradient[:, :, -1] if needs_extra else None, *found


def _shares(logits: Tensor, live: Tensor, any_empty: bool) -> Tensor:
    """Return the softmax over the kept patches: (R, J, S, N); zeros where none is kept."""
    kept = (live > 0).unsqueeze(2)
    if not any_empty:
        return torch.where(kept, logits.unsqueeze(1), -torch.inf).softmax(-1)
    empty = ~kept.any(-1, keepdim=True)
    shares = torch.where(kept | empty, logits.unsqueeze(1), -torch.inf).softmax(-1)
    return shares.masked_fill_(empty, 0.0)


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
    small = 1 if patches.is_cuda else _SMALL_ON_A_CPU
    if num_mixed < num_texts or not prefers_gram(*sizes, num_texts, small):
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
    num_patches: int,
    width: int,
    num_words: int,
    num_tokens: int,
    num_texts: int | None = None,
    small: int = 1,
) -> bool:
    """Whether `(w X^T) M^T` and norms from `G = X X^T` cost less than `w (M X)^T`.

    G is computed once for `num_texts` texts; None: for so many that its cost is negligible.
    `small`: time of a multiplication in the products of single texts, relative to those of all.

    >>> prefers_gram(196, 512, 28, 40), prefers_gram(196, 512, 29, 40)
    (True, False)
    >>> prefers_gram(196, 512, 13, 40, num_texts=1)
    False
    """
    gram = num_patches * (width * num_words + num_tokens * (small * num_words + num_patches))
    if num_texts is not None:
        gram += num_patches**2 * width // max(1, num_texts)
    return gram < num_tokens * width * (num_patches + small * num_words)
