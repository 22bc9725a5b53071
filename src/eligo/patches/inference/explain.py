"""One pair, opened up: which patches stayed, what the tokens are made of, what each word found."""

from math import isqrt

import torch
from torch import Tensor

from eligo.patches.kernels import algebra, reference
from eligo.patches.kernels.hoist import hoist
from eligo.patches.model.arithmetic import unit, wide
from eligo.patches.model.parts import Parts
from eligo.patches.model.scores import Choice, PatchExplanation
from eligo.patches.model.sides import Images, Texts
from eligo.selection import Selection


def explain(
    parts: Parts, images: Images, texts: Texts, grid_hw: tuple[int, int] | None
) -> PatchExplanation:
    """Explain the only image and the only text of two sides."""
    matches = reference.match(parts, images, texts, choices=True)
    assert matches.sparse is not None
    rows = hoist(parts, images)
    nets, chosen = (rows.logits,), (matches.sparse,)
    if matches.dense is not None and rows.logits_dense is not None:
        nets, chosen = (rows.logits, rows.logits_dense), (matches.sparse, matches.dense)
    has_extra = not parts.keeps_all(images.patches.shape[1], images.mask)
    extra = algebra.extra_weights(chosen, images.mask) if has_extra else None
    mixing = algebra.mixing_matrix(nets, chosen, extra)[0, 0]  # (tokens, N)
    names = [f"slot {slot}" for slot in range(rows.logits.shape[1])] + ["extra"] * has_extra
    tokens = mixing @ wide(images.patches[0])
    if images.cls is not None:
        names.insert(0, "[CLS]")
        tokens = torch.cat([wide(images.cls), tokens])
        mixing = torch.cat([mixing.new_zeros(1, mixing.shape[1]), mixing])
    words = unit(texts.words.of(0))
    cosines = words @ unit(tokens).T  # (words, tokens)
    best = cosines.max(1)
    shares = mixing / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_min(1e-12)
    return PatchExplanation(
        score=float(matches.scores[0, 0]),
        sparse=_alone(matches.sparse),
        dense=None if matches.dense is None else _alone(matches.dense),
        mixing=mixing,
        token_names=tuple(names),
        word_tokens=best.indices,
        word_scores=best.values,
        word_patches=shares[best.indices] * (words @ wide(images.patches[0]).T),
        heat_map=_heat_map(matches.sparse.score[0, 0], grid_hw),
    )


def _alone(choice: Choice) -> Selection:
    selection = choice.selection(None)
    return Selection(selection.indices[0, 0], selection.scores[0, 0], selection.mask[0, 0])


def _heat_map(score: Tensor, grid_hw: tuple[int, int] | None) -> Tensor | None:
    side = isqrt(len(score))
    if grid_hw is None:
        grid_hw = (side, side)
    rows, columns = grid_hw
    return score.view(rows, columns) if rows * columns == len(score) else None
