"""MaxSim: the late interaction of words and patches (ColBERT; FILIP for the two-sided form).

Each word finds its best patch, and each patch its best word; padding never counts. The two sides
can be reduced by a sum over words (ColBERT), means of both sides (FILIP) or their top-k (SEPS).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.ops.masked import full_mask, masked_mean


def maxsim_pieces(
    similarity: Float[Tensor, "*batch words patches"],
    word_mask: Bool[Tensor, "*#batch words"] | None = None,
    patch_mask: Bool[Tensor, "*#batch patches"] | None = None,
) -> tuple[Float[Tensor, "*batch words"], Float[Tensor, "*batch patches"]]:
    """`r_m = max_p A_mp` per word and `c_p = max_m A_mp` per patch, float32.

    Padding, and words or patches with nothing real to match, get 0.

    >>> maxsim_pieces(torch.tensor([[1.0, 2.0], [4.0, 3.0]]))
    (tensor([2., 4.]), tensor([4., 3.]))
    """
    similarity = similarity.float()
    words = similarity.new_ones(similarity.shape[:-1], dtype=torch.bool)
    patches = similarity.new_ones((*similarity.shape[:-2], similarity.shape[-1]), dtype=torch.bool)
    words = words if word_mask is None else words & word_mask
    patches = patches if patch_mask is None else patches & patch_mask
    per_word = _masked_max(similarity, patches.unsqueeze(-2), dim=-1).masked_fill(~words, 0.0)
    per_patch = _masked_max(similarity, words.unsqueeze(-1), dim=-2).masked_fill(~patches, 0.0)
    return per_word, per_patch


def maxsim(
    words: Float[Tensor, "*#batch words dim"],
    patches: Float[Tensor, "*#batch patches dim"],
    word_mask: Bool[Tensor, "*#batch words"] | None = None,
    patch_mask: Bool[Tensor, "*#batch patches"] | None = None,
    *,
    two_sided: bool = False,
) -> Float[Tensor, "*#batch"]:
    """`mean_m max_p <w_m, v_p>`, plus `mean_p max_m <w_m, v_p>` if two-sided; float32.

    Batch axes of length 1 broadcast: texts `1 texts words dim` against images
    `images 1 patches dim` gives all pairs. Normalise the vectors for cosines.

    >>> maxsim(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
    tensor(0.7500)
    """
    # A NaN in padding would reach the gradient as 0 * NaN.
    words = words if word_mask is None else words.masked_fill(~word_mask.unsqueeze(-1), 0.0)
    patches = patches if patch_mask is None else patches.masked_fill(~patch_mask.unsqueeze(-1), 0.0)
    similarity = words.float() @ patches.float().transpose(-1, -2)  # (*batch, words, patches)
    per_word, per_patch = maxsim_pieces(similarity, word_mask, patch_mask)
    score = _mean(per_word, word_mask)
    return score + _mean(per_patch, patch_mask) if two_sided else score


def _masked_max(similarity: Tensor, mask: Tensor, dim: int) -> Tensor:
    if similarity.shape[dim] == 0:
        return similarity.sum(dim)  # zeros of the right shape
    best = torch.where(mask, similarity, -torch.inf).amax(dim)
    return torch.where(mask.any(dim), best, 0.0)


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    return masked_mean(values, full_mask(values) if mask is None else mask.expand(values.shape))
