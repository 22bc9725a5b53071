"""Baselines without selection: one vector each, or all patches with all words.

Both take the inputs of `CrossSparseAggrNet`, and ignore dense text.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo import ops
from eligo.patches.model.best_matches import best_matches
from eligo.patches.model.explain import PatchExplanation
from eligo.patches.model.functional import mean_patch, unit, wide
from eligo.patches.model.hrpa import HRPA
from eligo.patches.model.inputs import Images, Texts
from eligo.selection import Selection

_LARGEST = 2**26  # cosines held at a time


class GlobalCosine(nn.Module):
    """The cosine of one vector of the image and one of the text, as in VSE++.

    `S = <unit([CLS] + mean patch), unit(mean word)>`; no parameters.
    """

    def match(self, images: Images, texts: Texts) -> Float[Tensor, "images texts"]:
        """Return the scores of all pairs."""
        return self.image_vectors(images) @ self.text_vectors(texts).T

    def image_vectors(self, images: Images) -> Float[Tensor, "images dim"]:
        """Return the unit vector of each image."""
        image = mean_patch(images.patches, images.mask)
        return unit(image if images.cls is None else image + wide(images.cls))

    def text_vectors(self, texts: Texts) -> Float[Tensor, "texts dim"]:
        """Return the unit vector of each text."""
        return unit(ops.masked_mean(wide(texts.words.vectors), texts.words.mask))

    def explain(self, images: Images, texts: Texts) -> PatchExplanation:
        """Explain the match of a single image and a single text, as one patch and one word."""
        score = self.match(images, texts)  # (1, 1)
        return PatchExplanation(
            score=float(score),
            sparse=Selection.top_k(score[0], 1),
            dense=None,
            mixing=torch.ones_like(score),
            token_names=("whole image",),
            word_tokens=score.new_zeros(1, dtype=torch.int64),
            word_scores=score[0],
            word_patches=score,
            heat_map=score,
        )


class TwoSidedMax(nn.Module):
    """Each word with its best patch, each patch with its best word (FILIP, arXiv 2111.07783).

    `S = mean_m max_p A_mp + mean_p max_m A_mp`, A the cosines of all words with [CLS] and all
    patches; no parameters. It is HRPA without selection, folding and leaky ReLU.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.hrpa = HRPA(embed_dim, scan=False)

    def match(self, images: Images, texts: Texts) -> Float[Tensor, "images texts"]:
        """Return the scores of all pairs, computed in chunks of images."""
        tokens, real = _tokens(images)
        words = texts.words.packed()
        units = unit(words.vectors)
        rows = max(1, _LARGEST // (words.mask.numel() * tokens.shape[1]))
        parts = []
        for chunk, mask in zip(tokens.split(rows), real.split(rows), strict=True):
            per_word, per_token = best_matches(unit(chunk), units, mask.unsqueeze(-1))
            per_token = per_token.transpose(1, 2)  # (images, texts, tokens)
            parts.append(self.hrpa.pool(per_word, per_token, words.mask[None], mask[:, None]))
        return torch.cat(parts)


def _tokens(images: Images) -> tuple[Tensor, Tensor]:
    """Return [CLS] and patches as one sequence, with their mask."""
    tokens, mask = images.patches, images.mask
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    if images.cls is None:
        return tokens, mask
    return (
        torch.cat([images.cls.unsqueeze(1), tokens], 1),
        torch.cat([mask.new_ones(len(mask), 1), mask], 1),
    )
