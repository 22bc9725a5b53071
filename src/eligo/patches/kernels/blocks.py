"""The kernel `torch`: the same numbers as the loop, from a few large matrix products.

Predictor and slot logits depend on the image alone and are computed once per image (`hoist`);
`algebra` does the rest. The leaky ReLU is monotone and comes after the maximum; texts are padded by
repeating their first word, which changes no maximum; the [CLS] row is one product over all words.

Images and texts of similar length are processed in blocks, by a byte budget. In training each block
is a checkpoint: its intermediates are recomputed in the backward pass. Where the GPU has memory for
all of them, blocks are large and nothing is recomputed. On a GPU there is no device
sync, except to sort texts of more than a few words by their lengths.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eligo.patches.kernels import algebra
from eligo.patches.kernels.hoist import (
    ImageRows,
    TextRows,
    are_alike,
    hoist,
    text_blocks,
    text_rows,
)
from eligo.patches.kernels.interface import Matches, Parts, PatchDecision
from eligo.patches.model.functional import wide
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.token_sparse import combine

BYTE_BUDGET = 256 * 2**20
CPU_BYTE_BUDGET = 16 * 2**20  # about the size of a cache: larger blocks are slower
KEPT_SHARE = 1 / 16  # of a GPU's memory: a smaller training batch is stored, without checkpoints

Noise = tuple[Tensor | None, Tensor | None]
Weighted = tuple[PatchDecision, Tensor]
"""A decision, and the weights of its extra token."""


def match(
    parts: Parts,
    images: Images,
    texts: Texts,
    *,
    decisions: bool,
    byte_budget: int | None = None,
    fused: bool = False,
) -> Matches:
    """Score all pairs, block by block; `fused`: the inner part of each block by Triton."""
    rows = hoist(parts, images)
    return match_rows(parts, rows, texts, decisions=decisions, byte_budget=byte_budget, fused=fused)


def match_rows(
    parts: Parts,
    rows: ImageRows,
    texts: Texts,
    *,
    decisions: bool = False,
    byte_budget: int | None = None,
    fused: bool = False,
) -> Matches:
    """Score all pairs of images that were hoisted before, such as those of an index."""
    words, (num_texts, longest) = texts.words, texts.words.mask.shape
    selects_dense = parts.selects_dense(rows.s_dt is not None or texts.dense is not None)
    noise = parts.draw(rows.s_im, num_texts, selects_dense)
    on_gpu = rows.patches.is_cuda
    budget = byte_budget or (BYTE_BUDGET if on_gpu else CPU_BYTE_BUDGET)
    fixed, per_word = pair_bytes(rows, fused)
    everything = len(rows.s_im) * num_texts * (fixed + per_word * longest)
    kept_bytes = _kept_bytes(rows.patches.device) if on_gpu and byte_budget is None else 0
    keeps_all = everything <= kept_bytes
    if keeps_all and torch.is_grad_enabled():
        budget = kept_bytes
    if fused:
        rows = _with_factor(rows, num_texts)
    alike = longest if are_alike(words) else None
    columns, order = [], []
    for ids in text_blocks(words.lengths, (fixed, per_word), budget, alike):
        block = text_rows(texts.words, ids).with_cls_cosines(rows.cls)
        dense = _dense_rows(parts, texts, ids)
        dense = None if dense is None else dense.with_cls_cosines(rows.cls)
        # On a GPU several images at once, which saves launches. On a CPU one: otherwise the last
        # bit of a score would depend on the image's neighbours, and equal images would not tie.
        cost = (fixed + per_word * block.mask.shape[-1]) * len(ids)
        num_images = max(1, budget // cost) if on_gpu else 1
        column = []
        for index, image in enumerate(rows.split(num_images)):
            cut = slice(index * num_images, (index + 1) * num_images)
            draws: Noise = tuple(None if part is None else part[cut, ids] for part in noise)  # pyright: ignore[reportAssignmentType]
            sides = (block.for_images(cut), None if dense is None else dense.for_images(cut))
            arguments = (parts, image, *sides, draws, selects_dense, decisions, fused)
            column.append(_score(*arguments) if keeps_all else _run(*arguments))
        columns.append([torch.cat(part) for part in zip(*column, strict=True)])
        order.append(ids)
    back = torch.cat(order).argsort()
    merged = [torch.cat(part, 1)[:, back] for part in zip(*columns, strict=True)]
    pairs = [PatchDecision(*merged[start : start + 2]) for start in range(2, len(merged), 2)]
    return Matches(merged[0], merged[1], *pairs, *[None] * (2 - len(pairs)))


def match_pairs(
    parts: Parts,
    images: Images,
    texts: Texts,
    image_ids: Int[Tensor, " pairs"],
    text_ids: Int[Tensor, " pairs"],
) -> Float[Tensor, " pairs"]:
    """Score the given pairs: each is a row of one image and one text."""
    rows = hoist(parts, images)
    selects_dense = parts.selects_dense(rows.s_dt is not None or texts.dense is not None)
    fixed, per_word = pair_bytes(rows)
    image_bytes = rows.patches[0].numel() * rows.patches.element_size()
    budget = BYTE_BUDGET if images.patches.is_cuda else CPU_BYTE_BUDGET
    scores, order = [], []
    lengths = texts.words.lengths[text_ids]
    alike = texts.words.mask.shape[1] if are_alike(texts.words) else None
    for picked in text_blocks(lengths, (fixed + image_bytes, per_word), budget, alike):
        image = rows.pick(image_ids[picked])
        block = text_rows(texts.words, text_ids[picked]).paired().with_cls_cosines(image.cls)
        dense = _dense_rows(parts, texts, text_ids[picked])
        dense = None if dense is None else dense.paired().with_cls_cosines(image.cls)
        score, *_ = _run(parts, image, block, dense, (None, None), selects_dense, False)
        scores.append(score.squeeze(1))
        order.append(picked)
    return torch.cat(scores)[torch.cat(order).argsort()]


def _kept_bytes(device: torch.device) -> int:
    return int(KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory)


def pair_bytes(rows: ImageRows, fused: bool = False) -> tuple[int, int]:
    """Return the bytes of a pair's intermediates: a constant, and a number per word.

    The larger of the two associations: M and M X, or M, M G and X w^T (float32). Fused, only
    selections, maxima and X w^T.
    """
    slots, patches = rows.logits.shape[1:]
    if fused:
        return 4 * (8 * patches + 4 * slots), 4 + patches * rows.patches.element_size()
    tokens, width = slots + 1, rows.patches.shape[-1]
    return 4 * tokens * (patches + max(width, patches)), 4 * (tokens + patches)


def _with_factor(rows: ImageRows, num_texts: int) -> ImageRows:
    """Add F where it saves time: narrower than the patches, in half precision, for many texts.

    In float32 its tiles do not fit on the chip; F costs about as much as it saves for N texts.
    """
    num_patches, width = rows.patches.shape[1:]
    saves_time = num_patches < width and num_patches <= num_texts
    if not saves_time or rows.patches.dtype == torch.float32:
        return rows
    from eligo.patches.kernels.triton_kernels import span  # only where Triton is installed

    return replace(rows, factor=span(rows.patches))


def _dense_rows(parts: Parts, texts: Texts, ids: Tensor) -> TextRows | None:
    """Return dense words of the texts (`compat`); the paper's version needs only directions."""
    return None if texts.dense is None else text_rows(texts.dense, ids, match=not parts.paper)


def _run(parts: Parts, *arguments: Any) -> tuple[Tensor, ...]:
    if not torch.is_grad_enabled():
        return _score(parts, *arguments)
    # Noise is drawn outside, so no random state needs saving.
    return checkpoint(_score, parts, *arguments, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


def _score(
    parts: Parts,
    image: ImageRows,
    text: TextRows,
    dense: TextRows | None,
    noise: Noise,
    selects_dense: bool,
    decisions: bool,
    fused: bool = False,
) -> tuple[Tensor, ...]:
    """Return scores and shares (R, J) of a block and, on request, score and D of selections."""
    mask = None if image.mask is None else image.mask.unsqueeze(1)  # (R, 1, N)
    with torch.no_grad():
        s_im = image.s_im.unsqueeze(1)  # (R, 1, N)
        s_st = _cosines_to(image, text.directions)  # (R, J, N)
        s_dt = None if image.s_dt is None else image.s_dt.unsqueeze(1)
        if dense is not None:
            s_dt = _cosines_to(image, dense.directions)
    prediction = [
        None if part is None else part.unsqueeze(1)
        for part in (image.prediction, image.prediction_dense)
    ]
    typicality = parts.sparse.typicality
    score = combine(prediction[0], s_im, s_st, s_dt, parts.beta, mask, typicality)
    chosen = (_choose(parts, image, score, noise[0], 1 if s_dt is None else 2, fused),)
    if selects_dense:
        assert s_dt is not None
        score = combine(prediction[1], s_im, s_dt, s_st, parts.beta, mask, typicality)
        chosen = (*chosen, _choose(parts, image, score, noise[1], 2, fused))
    if parts.paper:
        score = _align(parts, image, text, chosen, fused)
    else:
        score = _align(parts, image, text, chosen[:1], fused)
        if selects_dense:
            words = text if dense is None else dense
            score = score + _align(parts, image, words, chosen[1:], fused)
    shares = [decision.share(mask).expand(score.shape) for decision, _ in chosen]
    results = [score, torch.stack(shares).mean(0)]
    if decisions:
        results += [part.expand(*score.shape, -1) for decision, _ in chosen for part in decision]
    return tuple(results)


def _choose(
    parts: Parts, image: ImageRows, score: Tensor, noise: Tensor | None, guides: int, fused: bool
) -> Weighted:
    """Return the decision by the scores (R, J, N), and the extra token's weights."""
    mask, num_kept = image.mask, parts.num_kept(score.shape[-1], None)
    if image.num_kept is not None:
        num_kept = image.num_kept
    if fused and not parts.bernoulli:
        from eligo.patches.kernels.triton_kernels import keep_best  # only where Triton is installed

        live, extra = keep_best(score, num_kept, mask)
        return PatchDecision(score, live), extra
    budget = num_kept if isinstance(num_kept, int) else num_kept.unsqueeze(1)
    pair_mask = None if mask is None else mask.unsqueeze(1)
    decision = PatchDecision(score, parts.decide(score, budget, pair_mask, noise, guides))
    return decision, algebra.dropped_weights(_as_weights(parts, decision), mask)


def _as_weights(parts: Parts, decision: PatchDecision) -> PatchDecision:
    """Return the decision as weights: without gradient under `compat`, which gathers patches."""
    return decision._replace(live=decision.live.detach()) if parts.compat else decision


def _cosines_to(image: ImageRows, directions: Tensor) -> Tensor:
    """(R, N, C) and (1 or R, J, C) -> (R, J, N), one float32 product."""
    return directions @ wide(image.patches).transpose(1, 2) / image.norms.unsqueeze(1)


def _align(
    parts: Parts, image: ImageRows, text: TextRows, chosen: tuple[Weighted, ...], fused: bool
) -> Tensor:
    """Return HRPA of [CLS], slots and extra token with the words: (R, J)."""
    num_patches = image.patches.shape[1]
    has_extra = not parts.keeps_all(num_patches, image.mask)
    may_lack = has_extra and parts.may_drop_nothing(num_patches, image.mask)
    nets = (image.logits, image.logits if image.logits_dense is None else image.logits_dense)
    nets, decisions = (
        nets[: len(chosen)],
        tuple(_as_weights(parts, decision) for decision, _ in chosen),
    )
    extra = algebra.mean_weights([part for _, part in chosen]) if has_extra else None  # (R, J, N)
    maxima = None
    if fused and decisions[0].live.shape[1] == text.words.shape[1]:
        from eligo.patches.kernels.triton_kernels import (
            best_cosines,  # only where Triton is installed
        )

        num_words, width = text.words.shape[2:]
        num_tokens = image.logits.shape[1] + has_extra
        gram = algebra.prefers_gram(num_patches, width, num_words, num_tokens)
        factor = image.factor if gram else None
        maxima = best_cosines(
            nets, decisions, extra, image.patches, factor, text.words[0], extra_may_lack=may_lack
        )
    lacks = (extra == 0).all(-1) if may_lack and extra is not None else None  # (R, J)
    if maxima is None:
        mixing = algebra.mixing_matrix(
            nets, decisions, extra, image.patches.dtype, any_empty=image.mask is not None
        )
        cosines = algebra.mixed_cosines(mixing, image.patches, text.words)  # (R, J, L, tokens)
        if lacks is not None:  # hide the missing extra token
            last = cosines[..., -1:].masked_fill(lacks[..., None, None], -torch.inf)
            cosines = torch.cat([cosines[..., :-1], last], -1)
        maxima = cosines.amax(3), cosines.amax(2)
    per_word, per_token = maxima  # (R, J, L), (R, J, tokens)
    if text.cls is not None:
        per_word = torch.maximum(per_word, text.cls)
        per_token = torch.cat([text.cls.amax(2, keepdim=True), per_token], 2)
    token_mask = None
    if lacks is not None:
        token_mask = torch.ones_like(per_token, dtype=torch.bool)
        token_mask[..., -1] = ~lacks
    hrpa = parts.hrpa
    return hrpa.pool(hrpa.squash(per_word), hrpa.squash(per_token), text.mask, token_mask)
