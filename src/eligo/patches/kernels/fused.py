"""The kernel `triton`: mixing, matching and both maxima of a pair without leaving the chip.

The kernel `torch` writes M and M X of every pair to memory and reads them back; here a program
builds M (tokens x patches) for one image and one text after the other, multiplies it with slices of
the patches, and accumulates cosines and squared norms over the slices: what leaves the chip are the
best token of each word and the best word of each token. Forward only: inference, and the first pass
of `two_pass_loss`. Selection stays in torch, so that it is the same selection.

Interpreted (`TRITON_INTERPRET=1`) it runs on a CPU, for tests.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from eligo.patches.kernels import algebra
from eligo.patches.scores import Choice

_TEXTS = 4  # per program: they share the slot weights of their image
_SLICE = 64  # of the width, at a time


@triton.jit
def _best_cosines(
    powers,  # (R, S, N): e^(l - max), of the first weight net
    live,  # (R, J, N): D of the first selection
    scale,  # (R, J, S): 1 / sum D e^l
    powers_dense,
    live_dense,
    scale_dense,
    extra,  # (R, J, N): the extra token's row of M
    patches,  # (R, N, C)
    words,  # (J, L, C), unit
    per_word,  # (R, J, L), out
    per_token,  # (R, J, P), out
    num_texts,
    num_slots,
    num_patches,
    num_words,
    width,
    DUAL: tl.constexpr,
    HAS_EXTRA: tl.constexpr,
    EXTRA_MAY_LACK: tl.constexpr,
    PRECISION: tl.constexpr,
    TEXTS: tl.constexpr,
    TOKENS: tl.constexpr,
    PATCHES: tl.constexpr,
    WORDS: tl.constexpr,
    SLICE: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    token = tl.arange(0, TOKENS)
    patch = tl.arange(0, PATCHES)
    word = tl.arange(0, WORDS)
    column = tl.arange(0, SLICE)
    is_slot = token < num_slots
    is_patch = patch < num_patches
    num_tokens = num_slots + HAS_EXTRA
    slot_at = (image * num_slots + token[:, None]) * num_patches + patch[None, :]
    slot_mask = is_slot[:, None] & is_patch[None, :]
    first = tl.load(powers + slot_at, slot_mask, 0.0)
    second = first
    if DUAL:
        second = tl.load(powers_dense + slot_at, slot_mask, 0.0)

    for step in range(TEXTS):
        text = tl.program_id(0) * TEXTS + step
        if text < num_texts:
            pair = image * num_texts + text
            row = pair * num_patches + patch
            at = pair * num_slots + token
            mixing = first * tl.load(live + row, is_patch, 0.0)[None, :]
            mixing *= tl.load(scale + at, is_slot, 0.0)[:, None]
            if DUAL:
                more = second * tl.load(live_dense + row, is_patch, 0.0)[None, :]
                mixing += more * tl.load(scale_dense + at, is_slot, 0.0)[:, None]
            last = tl.load(extra + row, is_patch, 0.0)
            if HAS_EXTRA:
                mixing = tl.where(token[:, None] == num_slots, last[None, :], mixing)
            mixing = mixing.to(patches.dtype.element_ty)

            products = tl.zeros((TOKENS, WORDS), tl.float32)
            squares = tl.zeros((TOKENS,), tl.float32)
            for start in range(0, width, SLICE):
                inside = start + column < width
                at_patch = (image * num_patches + patch[:, None]) * width + start + column[None, :]
                some = tl.load(patches + at_patch, is_patch[:, None] & inside[None, :], 0.0)
                mixed = tl.dot(mixing, some, input_precision=PRECISION)  # (TOKENS, SLICE)
                squares += tl.sum(mixed * mixed, 1)
                at_word = (text * num_words + word[:, None]) * width + start + column[None, :]
                word_mask = (word[:, None] < num_words) & inside[None, :]
                vectors = tl.load(words + at_word, word_mask, 0.0)  # (WORDS, SLICE)
                products += tl.dot(
                    mixed.to(vectors.dtype), tl.trans(vectors), input_precision=PRECISION
                )
            cosines = products / tl.maximum(tl.sqrt(squares), 1e-12)[:, None]
            present = num_tokens
            if EXTRA_MAY_LACK:
                weight = tl.sum(last, 0)
                present = tl.where(weight > 0, num_tokens, num_slots)  # pyright: ignore[reportOperatorIssue]
            by_word = tl.where((token < present)[:, None], cosines, float("-inf"))
            by_token = tl.where((word < num_words)[None, :], cosines, float("-inf"))
            tl.store(per_word + pair * num_words + word, tl.max(by_word, 0), word < num_words)
            tl.store(per_token + pair * num_tokens + token, tl.max(by_token, 1), token < num_tokens)


def best_cosines(
    logits: tuple[Float[Tensor, "images slots patches"], ...],
    chosen: tuple[Choice, ...],
    extra: Float[Tensor, "images texts patches"] | None,
    patches: Float[Tensor, "images patches dim"],
    words: Float[Tensor, "texts words dim"],
    *,
    extra_may_lack: bool,
) -> tuple[Float[Tensor, "images texts words"], Float[Tensor, "images texts tokens"]] | None:
    """Best cosine of each word and of each token; None where a softmax sum underflows."""
    num_images, num_slots, num_patches = logits[0].shape
    num_texts, num_words, width = words.shape
    weights = []
    for part, choice in zip(logits, chosen, strict=True):
        powers, total = algebra.slot_powers(part, choice.live)
        if bool((total < algebra.SMALLEST_SUM).any()):
            return None
        weights.append((powers, choice.live.contiguous(), total.reciprocal()))
    (powers, live, scale), (powers_dense, live_dense, scale_dense) = weights[0], weights[-1]
    num_tokens = num_slots + (extra is not None)
    per_word = patches.new_empty(num_images, num_texts, num_words, dtype=torch.float32)
    per_token = patches.new_empty(num_images, num_texts, num_tokens, dtype=torch.float32)
    launch: Any = _best_cosines[(triton.cdiv(num_texts, _TEXTS), num_images)]  # pyright: ignore[reportIndexIssue]
    launch(
        powers,
        live,
        scale,
        powers_dense,
        live_dense,
        scale_dense,
        live if extra is None else extra.contiguous(),
        patches.contiguous(),
        words.to(patches.dtype).contiguous(),
        per_word,
        per_token,
        num_texts,
        num_slots,
        num_patches,
        num_words,
        width,
        DUAL=len(chosen) > 1,
        HAS_EXTRA=int(extra is not None),
        EXTRA_MAY_LACK=extra_may_lack,
        PRECISION="ieee",
        TEXTS=_TEXTS,
        TOKENS=max(16, triton.next_power_of_2(num_tokens)),
        PATCHES=max(16, triton.next_power_of_2(num_patches)),
        WORDS=max(16, triton.next_power_of_2(num_words)),
        SLICE=_SLICE,
    )
    return per_word, per_token
