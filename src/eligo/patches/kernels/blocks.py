"""The kernel `torch`: the same numbers as the loop, from a few large matrix products.

Exact algebra, nothing is approximated:
- Hoisting. The predictor and the slot logits depend on the image alone: once per image, not once
  per pair. Only what stays depends on the pair.
- One mixing matrix M (tokens x patches) per pair does all folding: its rows are the slots'
  `D e^l / sum D e^l` (both selections of the paper's version added) and, last, the extra token's
  `(1 - D) e^s / sum (1 - D) e^s`. So tokens are `M X`, and no patch is ever gathered.
- Association. Words and tokens meet as `(M X) w^T` or as `M (X w^T)`, with squared token norms
  `rowsum((M G) * M)`, `G = X X^T`; whichever costs less.
- The leaky ReLU is monotone and comes after the maximum; texts are padded by repeating their first
  word, which no maximum notices; the [CLS] row is one product over all words.

Work is cut into blocks of one or more images and several texts of like length, by a byte budget. In
training each block is a checkpoint: its intermediates are made again in the backward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eligo import ops
from eligo.patches.arithmetic import unit, weighted_softmax, wide
from eligo.patches.parts import Parts
from eligo.patches.scores import Choice, Matches
from eligo.patches.sides import Images, Texts, Words
from eligo.patches.token_sparse import combine, cosine_to_mean

BYTE_BUDGET = 256 * 2**20
_CPU_BUDGET = 16 * 2**20  # about a cache: larger blocks are slower there
_SMALLEST_SUM = 1e-20  # under it a softmax sum in float32 is no longer exact


@dataclass(frozen=True)
class _ImageRows:
    """What depends on images alone, hoisted out of the pairs: axis 0 is images."""

    patches: Tensor  # (R, N, C)
    lengths: Tensor  # (R, N), |x|
    cls: Tensor | None  # (R, C), unit
    mask: Tensor | None  # (R, N)
    num_kept: Tensor | None  # (R,), where images differ
    s_im: Tensor  # (R, N)
    s_dt: Tensor | None  # (R, N)
    predictions: tuple[Tensor | None, ...]  # equation 1: (R, N) for each selection
    logits: tuple[Tensor, ...]  # equation 4: (R, S, N) for each weight net


@dataclass(frozen=True)
class _TextRows:
    """Texts of like length: axis 0 is 1 (the same for all images) or images, axis 1 texts."""

    words: Tensor  # (1 or R, J, L, C), unit
    mask: Tensor  # (1 or R, J, L)
    directions: Tensor  # (1 or R, J, C)


@dataclass(frozen=True)
class _Pairs:
    """All of one block: images, texts, their dense texts (documented wiring), noise."""

    images: _ImageRows
    texts: _TextRows
    dense: _TextRows | None
    noise: tuple[Tensor | None, Tensor | None]  # (R, J, N)


def match(
    parts: Parts, images: Images, texts: Texts, *, choices: bool, byte_budget: int | None = None
) -> Matches:
    """All pairs, block by block."""
    num_images, num_patches = images.patches.shape[:2]
    words = texts.words.packed()
    dense = None if texts.dense is None else texts.dense.packed()
    selects_dense = parts.selects_dense(images, texts)
    hoisted = _hoist(parts, images)
    noise = parts.draw(hoisted.s_im, len(words.mask), selects_dense)
    per_pair = _bytes_per_pair(parts, hoisted, words)
    budget = byte_budget or (BYTE_BUDGET if images.patches.is_cuda else _CPU_BUDGET)
    pieces, order = [], []
    for ids, length in _text_blocks(words, max(1, budget // per_pair)):
        # On a GPU several images at once, at the price of a copy of the words for each.
        rows = max(1, budget // (per_pair * len(ids))) if images.patches.is_cuda else 1
        text_rows = _text_rows(words, ids, length)
        dense_rows = None if dense is None else _text_rows(dense, ids, dense.mask.shape[1])
        block_noise = [None if part is None else part[:, ids].split(rows) for part in noise]
        column = []
        for index, image_rows in enumerate(_split(hoisted, rows)):
            local = tuple(None if part is None else part[index] for part in block_noise)
            pairs = _Pairs(image_rows, text_rows, dense_rows, local)  # pyright: ignore[reportArgumentType]
            column.append(_run(parts, pairs, selects_dense, choices))
        pieces.append([_cat(part, 0) for part in zip(*column, strict=True)])
        order.append(ids)
    back = torch.cat(order).argsort()
    merged = [_cat(part, 1) for part in zip(*pieces, strict=True)]
    scores, share, *chosen = [None if part is None else part[:, back] for part in merged]
    assert scores is not None and share is not None
    assert scores.shape[0] == num_images and num_patches
    made = [Choice(*pair) for pair in zip(chosen[::2], chosen[1::2], strict=True) if choices]
    return Matches(scores, share, made[0] if made else None, made[1] if len(made) > 1 else None)
