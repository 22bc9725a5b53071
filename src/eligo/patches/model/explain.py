"""Explain one pair: kept patches, their weights in the tokens, and each word's best token."""

from dataclasses import dataclass
from math import isqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.patches.kernels import algebra, reference
from eligo.patches.kernels.hoist import hoist
from eligo.patches.kernels.interface import Parts, PatchDecision
from eligo.patches.model.functional import unit, wide
from eligo.patches.model.inputs import Images, Texts
from eligo.selection import Selection


@dataclass(frozen=True, eq=False)
class PatchExplanation:
    """Explanation of the score of one image and one text; selections have no batch axes."""

    score: float
    sparse: Selection
    """Patches kept for the text."""
    dense: Selection | None
    """Patches kept for the dense text, if there is one."""
    mixing: Float[Tensor, "tokens patches"]
    """Weights of the patches in each token; rows [CLS] (zeros), slots, extra."""
    token_names: tuple[str, ...]
    word_tokens: Int[Tensor, " words"]
    """Each word's best token: a row of `mixing`."""
    word_scores: Float[Tensor, " words"]
    """The cosine of each word with its best token."""
    word_patches: Float[Tensor, "words patches"]
    """Contribution of each patch to that cosine: rows sum to it (to 0 if the token is [CLS])."""
    heat_map: Float[Tensor, "height width"] | None
    """Selection scores on the patch grid; None where the grid is unknown."""


def explain(
    parts: Parts, images: Images, texts: Texts, grid_hw: tuple[int, int] | None
) -> PatchExplanation:
    """Explain the match of a single image and a single text."""
    matches = reference.match(parts, images, texts, decisions=True)
    assert matches.sparse is not None
    rows = hoist(parts, images)
    nets, decisions = (rows.logits,), (matches.sparse,)
    if matches.dense is not None and rows.logits_dense is not None:
        nets, decisions = (rows.logits, rows.logits_dense), (matches.sparse, matches.dense)
    has_extra = not parts.keeps_all(images.patches.shape[1], images.mask)
    extra = algebra.extra_weights(decisions, images.mask) if has_extra else None
    mixing = algebra.mixing_matrix(nets, decisions, extra)[0, 0]  # (tokens, N)
    names = [f"slot {slot}" for slot in range(rows.logits.shape[1])] + ["extra"] * has_extra
    tokens = mixing @ wide(images.patches[0])
    if images.cls is not None:
        names.insert(0, "[CLS]")
        tokens = torch.cat([wide(images.cls), tokens])
        mixing = torch.cat([mixing.new_zeros(1, mixing.shape[1]), mixing])
    words = unit(texts.words.of(0))
    best = (words @ unit(tokens).T).max(1)
    shares = mixing / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_min(1e-12)
    return PatchExplanation(
        score=float(matches.scores[0, 0]),
        sparse=_single(matches.sparse),
        dense=None if matches.dense is None else _single(matches.dense),
        mixing=mixing,
        token_names=tuple(names),
        word_tokens=best.indices,
        word_scores=best.values,
        word_patches=shares[best.indices] * (words @ wide(images.patches[0]).T),
        heat_map=heat_map(matches.sparse.score[0, 0], grid_hw),
    )


def _single(decision: PatchDecision) -> Selection:
    selection = decision.selection(None)
    return Selection(selection.indices[0, 0], selection.scores[0, 0], selection.mask[0, 0])


def heat_map(
    score: Float[Tensor, " patches"], grid_hw: tuple[int, int] | None
) -> Float[Tensor, "height width"] | None:
    """Return scores on the patch grid; None where they do not fill it."""
    side = isqrt(len(score))
    rows, columns = grid_hw or (side, side)
    return score.view(rows, columns) if rows * columns == len(score) else None
