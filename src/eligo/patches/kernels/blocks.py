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

Work is cut into blocks of images and texts of like length, by a byte budget. In training each block
is a checkpoint: its intermediates are made again in the backward pass, never kept.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eligo.patches.arithmetic import weighted_softmax, wide
from eligo.patches.kernels.hoist import ImageRows, TextRows, hoist, text_blocks, text_rows
from eligo.patches.parts import Parts
from eligo.patches.scores import Choice, Matches
from eligo.patches.sides import Images, Texts
from eligo.patches.token_sparse import combine

BYTE_BUDGET = 256 * 2**20
CPU_BYTE_BUDGET = 16 * 2**20  # about a cache: there larger blocks are slower
_SMALLEST_SUM = 1e-20  # a softmax sum below is made again from its own maximum

Noise = tuple[Tensor | None, Tensor | None]


def match(
    parts: Parts, images: Images, texts: Texts, *, choices: bool, byte_budget: int | None = None
) -> Matches:
    """All pairs, block by block."""
    rows = hoist(parts, images)
    lengths = texts.words.lengths
    selects_dense = parts.selects_dense(images, texts)
    noise = parts.draw(rows.s_im, len(lengths), selects_dense)
    on_gpu = images.patches.is_cuda
    budget = byte_budget or (BYTE_BUDGET if on_gpu else CPU_BYTE_BUDGET)
    fixed, per_word = pair_bytes(rows)
    columns, order = [], []
    for ids in text_blocks(lengths, (fixed, per_word), budget):
        block = text_rows(texts.words, ids)
        dense = _dense_rows(parts, texts, ids)
        # On a GPU several images at once, which saves launches and copies the words for each.
        cost = (fixed + per_word * block.mask.shape[-1]) * len(ids)
        num_images = max(1, budget // cost) if on_gpu else 1
        column = []
        start = 0
        for image in rows.split(num_images):
            cut = slice(start, start + num_images)
            start += num_images
            draws = tuple(None if part is None else part[cut, ids] for part in noise)
            column.append(_run(parts, image, block, dense, draws, selects_dense, choices))
        columns.append([torch.cat(part) for part in zip(*column, strict=True)])
        order.append(ids)
    back = torch.cat(order).argsort()
    merged = [torch.cat(part, 1)[:, back] for part in zip(*columns, strict=True)]
    chosen = [Choice(*merged[start : start + 2]) for start in range(2, len(merged), 2)]
    return Matches(merged[0], merged[1], *chosen, *[None] * (2 - len(chosen)))


def match_pairs(
    parts: Parts,
    images: Images,
    texts: Texts,
    image_ids: Int[Tensor, "pairs"],
    text_ids: Int[Tensor, "pairs"],
) -> Float[Tensor, "pairs"]:
    """Some pairs: each is a block row of one image and one text."""
    rows = hoist(parts, images)
    selects_dense = parts.selects_dense(images, texts)
    fixed, per_word = pair_bytes(rows)
    own = rows.patches[0].numel() * rows.patches.element_size()
    budget = BYTE_BUDGET if images.patches.is_cuda else CPU_BYTE_BUDGET
    scores, order = [], []
    lengths = texts.words.lengths[text_ids]
    for picked in text_blocks(lengths, (fixed + own, per_word), budget):
        block = _per_row(text_rows(texts.words, text_ids[picked]))
        dense = _dense_rows(parts, texts, text_ids[picked])
        dense = None if dense is None else _per_row(dense)
        image = rows.pick(image_ids[picked])
        score, *_ = _run(parts, image, block, dense, (None, None), selects_dense, False)
        scores.append(score.squeeze(1))
        order.append(picked)
    return torch.cat(scores)[torch.cat(order).argsort()]


def pair_bytes(rows: ImageRows) -> tuple[int, int]:
    """Bytes of a pair's intermediates: a constant part, and a part for each word.

    The larger of the two associations: M and M X, or M, M G and X w^T (float32).
    """
    slots, patches = rows.logits.shape[1:]
    tokens, width = slots + 1, rows.patches.shape[-1]
    return 4 * tokens * (patches + max(width, patches)), 4 * (tokens + patches)


def prefers_gram(num_patches: int, width: int, num_words: int, num_tokens: int) -> bool:
    """Whether `M (X w^T)` and norms from `G = X X^T` cost less than `(M X) w^T`.

    Multiplications per pair; those in small products, one for each pair, count twice: they run at
    about half the speed of the large ones.
    """
    gram = num_patches * (width * num_words + num_tokens * (num_patches + 2 * num_words))
    return gram < num_tokens * width * (num_patches + 2 * num_words)


def _run(parts: Parts, *arguments: Any) -> tuple[Tensor, ...]:
    if not torch.is_grad_enabled():
        return _score(parts, *arguments)
    # Noise is drawn outside, so there is no random state to keep.
    return checkpoint(_score, parts, *arguments, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


def _score(
    parts: Parts,
    image: ImageRows,
    text: TextRows,
    dense: TextRows | None,
    noise: Noise,
    selects_dense: bool,
    choices: bool,
) -> tuple[Tensor, ...]:
    """One block: scores and shares (R, J), and, if asked for, score and D of each selection."""
    num_patches = image.patches.shape[1]
    mask = None if image.mask is None else image.mask.unsqueeze(1)  # (R, 1, N)
    with torch.no_grad():
        s_im = image.s_im.unsqueeze(1)  # (R, 1, N)
        s_st = _cosines_to(image, text.directions)  # (R, J, N)
        s_dt = None if image.s_dt is None else image.s_dt.unsqueeze(1)
        if dense is not None:
            s_dt = _cosines_to(image, dense.directions)
    num_kept = parts.num_kept(num_patches, None)
    if image.num_kept is not None:
        num_kept = image.num_kept.unsqueeze(1)

    def choose(prediction: Tensor | None, y: Tensor, other: Tensor | None, draw: Tensor | None):
        prediction = None if prediction is None else prediction.unsqueeze(1)
        score = combine(prediction, s_im, y, other, parts.beta, mask)
        live = parts.decide(score, num_kept, mask, draw, guides=1 if other is None else 2)
        return Choice(score, live)

    chosen = [choose(image.prediction, s_st, s_dt, noise[0])]
    mixing = [slot_weights(image.logits, chosen[0].live)]
    extras = [extra_weights(chosen[0], image.mask)]
    if selects_dense:
        assert s_dt is not None
        chosen.append(choose(image.prediction_dense, s_dt, s_st, noise[1]))
        logits = image.logits if image.logits_dense is None else image.logits_dense
        mixing.append(slot_weights(logits, chosen[1].live))
        extras.append(extra_weights(chosen[1], image.mask))
    if parts.paper:  # slots are the sum of both; of the extras the mean, up to a scale
        score = _align(parts, sum(mixing[1:], mixing[0]), sum(extras[1:], extras[0]), image, text)
    else:
        score = _align(parts, mixing[0], extras[0], image, text)
        if selects_dense:
            words = text if dense is None else dense
            score = score + _align(parts, mixing[1], extras[1], image, words)
    shares = [_share(choice.live, image.mask).expand(score.shape) for choice in chosen]
    results = [score, torch.stack(shares).mean(0)]
    if choices:
        results += [part.expand(*score.shape, -1) for choice in chosen for part in choice]
    return tuple(results)


def _cosines_to(image: ImageRows, directions: Tensor) -> Tensor:
    """(R, N, C) and (1 or R, J, C) -> (R, J, N), one float32 product."""
    return directions @ wide(image.patches).transpose(1, 2) / image.norms.unsqueeze(1)


def slot_weights(
    logits: Float[Tensor, "images slots patches"], live: Float[Tensor, "images texts patches"]
) -> Float[Tensor, "images texts slots patches"]:
    """The rows of M for the slots: `D e^l / sum D e^l`."""
    powers = (logits - logits.amax(-1, keepdim=True).detach()).exp()  # (R, S, N)
    total = live @ powers.transpose(1, 2)  # (R, J, S)
    thin = total < _SMALLEST_SUM
    scale = torch.where(thin, 1.0, total).reciprocal()
    weights = live.unsqueeze(2) * powers.unsqueeze(1) * scale.unsqueeze(-1)
    if bool(thin.any()):  # all kept patches weigh nothing beside a dropped one
        row, text, slot = thin.nonzero(as_tuple=True)
        again = weighted_softmax(logits[row, slot], live[row, text])
        weights = weights.index_put((row, text, slot), again)
    return weights


def extra_weights(
    choice: Choice, mask: Bool[Tensor, "images patches"] | None
) -> Float[Tensor, "images texts 1 patches"]:
    """The row of M for the extra token: `(1 - D) e^s / sum (1 - D) e^s`; zeros if none dropped."""
    dropped = 1 - choice.live
    if mask is not None:
        dropped = dropped * mask.unsqueeze(1)
    powers = dropped * choice.score.exp()  # scores are small sums of cosines: nothing overflows
    total = powers.sum(-1, keepdim=True)
    return (powers / torch.where(total > 0, total, 1.0)).unsqueeze(2)


def _align(parts: Parts, slots: Tensor, extra: Tensor, image: ImageRows, text: TextRows) -> Tensor:
    """HRPA of [CLS], slots and extra token with the words: (R, J)."""
    rows = [_token_cosines(slots, image.patches, text.words)]  # (R, J, S, L)
    if image.cls is not None:
        flat = text.words.flatten(1, 2) @ image.cls.unsqueeze(-1)  # (R, J * L, 1)
        rows.append(flat.view(len(image.cls), *text.words.shape[1:3]).unsqueeze(2))
    token_mask = None
    if not parts.keeps_all(image.patches.shape[1], image.mask):
        cosines = _token_cosines(extra, image.patches, text.words)  # (R, J, 1, L)
        if parts.may_drop_nothing(image.patches.shape[1], image.mask):
            drops = (extra > 0).any(-1)  # (R, J, 1): else there is no such token
            cosines = torch.where(drops.unsqueeze(-1), cosines, -torch.inf)
            present = [drops.new_ones(*drops.shape[:2], row.shape[2]) for row in rows]
            token_mask = torch.cat([*present, drops], 2)
        rows.append(cosines)
    cosines = torch.cat(rows, 2)  # (R, J, tokens, L)
    per_word, per_token = cosines.amax(2), cosines.amax(3)
    hrpa = parts.hrpa
    return hrpa.pool(hrpa.squash(per_word), hrpa.squash(per_token), text.mask, token_mask)


def _token_cosines(mixing: Tensor, patches: Tensor, words: Tensor) -> Tensor:
    """Cosines of `M X` with unit words: (R, J or 1, tokens, N) -> (R, J, tokens, L)."""
    num_rows, num_mixed, num_tokens, num_patches = mixing.shape
    num_texts, num_words, width = words.shape[1:]
    mixing, words = mixing.to(patches.dtype), words.to(patches.dtype)
    if num_mixed == num_texts and prefers_gram(num_patches, width, num_words, num_tokens):
        products = patches @ words.flatten(1, 2).transpose(1, 2)  # (R, N, J * L)
        products = products.unflatten(2, (num_texts, num_words)).transpose(1, 2)
        cosines = mixing @ products  # (R, J, tokens, L)
        gram = patches @ patches.transpose(1, 2)  # (R, N, N)
        spread = (mixing.flatten(1, 2) @ gram).view_as(mixing)
        squared = (wide(spread) * mixing).sum(-1)
        norms = squared.clamp_min(1e-24).sqrt()  # (R, J, tokens)
    else:
        tokens = (mixing.flatten(1, 2) @ patches).unflatten(1, (num_mixed, num_tokens))
        if num_mixed == num_texts:
            cosines = tokens @ words.transpose(2, 3)
        else:  # one selection per image (image-side dense text) meets all texts
            flat = words.flatten(1, 2).transpose(1, 2)  # (1 or R, C, J * L)
            cosines = (tokens.squeeze(1) @ flat).unflatten(2, (num_texts, num_words))
            cosines = cosines.transpose(1, 2)
        norms = torch.linalg.vector_norm(wide(tokens), dim=-1).clamp_min(1e-12)
    assert num_rows == len(cosines)
    return wide(cosines) / norms.unsqueeze(-1)


def _share(live: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return live.mean(-1)
    return live.sum(-1) / mask.sum(-1).clamp_min(1).unsqueeze(-1)


def _dense_rows(parts: Parts, texts: Texts, ids: Tensor) -> TextRows | None:
    """Dense words of the documented wiring; the paper's version only needs their direction."""
    return None if texts.dense is None else text_rows(texts.dense, ids, match=not parts.paper)


def _per_row(text: TextRows) -> TextRows:
    """(1, pairs, ...) -> (pairs, 1, ...): every image row has its own text."""
    return TextRows(
        text.words.transpose(0, 1), text.mask.transpose(0, 1), text.directions.transpose(0, 1)
    )
