"""The best patch of every word and the best word of every patch, of many images and texts.

Only the winners get a gradient. So the cosines of all pairs, by far the largest tensor, are neither
stored for the backward pass nor computed again: it needs the indices of the winners only.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def best_matches(
    patches: Float[Tensor, "images patches dim"],
    words: Float[Tensor, "texts words dim"],
    kept: Bool[Tensor, "images patches texts"] | Bool[Tensor, "images patches 1"],
    cosines: Float[Tensor, "images patches texts words"] | None = None,
) -> tuple[Float[Tensor, "images texts words"], Float[Tensor, "images patches texts"]]:
    """Return every word's cosine with its best kept patch, and every patch's with its best word.

    Patches and words are unit vectors. `cosines`: theirs, where they are known already. Otherwise
    they have the type of an autocast.

    >>> patches, words = torch.eye(3)[None], torch.eye(3)[None, :2]
    >>> kept = torch.tensor([True, False, True])[None, :, None]
    >>> best_matches(patches, words, kept)
    (tensor([[[1., 0.]]]), tensor([[[1.],
             [1.],
             [0.]]]))
    """
    device = patches.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        patches, words = patches.to(dtype), words.to(dtype)
    found: Any = _BestMatches.apply(patches, words, kept, cosines)
    return found


@torch.no_grad()
def exact_cosines(
    patches: Float[Tensor, "images patches dim"], words: Float[Tensor, "texts words dim"]
) -> Float[Tensor, "images patches texts words"]:
    """Return the cosines of unit vectors, to rank by: without gradient and without autocast."""
    with torch.autocast(patches.device.type, enabled=False):
        return _products(patches, words)


def _products(patches: Tensor, words: Tensor) -> Tensor:
    return (patches @ words.flatten(0, 1).T).unflatten(2, words.shape[:2])


class _BestMatches(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, words: Tensor, kept: Tensor, cosines: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cosines = _products(patches, words) if cosines is None else cosines
        per_patch, word = cosines.max(3)
        per_word, patch = torch.where(kept.unsqueeze(-1), cosines, -torch.inf).max(1)
        ctx.save_for_backward(patches, words, word, patch)
        return per_word, per_patch

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_word: Tensor, d_patch: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        patches, words, word, patch = ctx.saved_tensors
        cosines = patches.new_zeros(*patches.shape[:2], *words.shape[:2])
        cosines.scatter_(3, word.unsqueeze(3), d_patch.unsqueeze(3).to(cosines.dtype))
        cosines.scatter_add_(1, patch.unsqueeze(1), d_word.unsqueeze(1).to(cosines.dtype))
        flat = cosines.flatten(2)
        d_words = flat.flatten(0, 1).T @ patches.flatten(0, 1)
        return flat @ words.flatten(0, 1), d_words.view(words.shape), None, None
