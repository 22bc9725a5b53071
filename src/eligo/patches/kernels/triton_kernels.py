"""The kernel `triton`: top-K, mixing, matching and both maxima of a pair in on-chip memory.

`best_cosines`: a program builds M (tokens x patches) for one image and one text after the other,
and stores only the best token of each word and the best word of each token. Its softmax runs over
the kept patches alone, so nothing underflows. There are two associations, as in `algebra`:

- direct: M times slices of the patches; cosines and squared norms accumulate over the slices.
- gram: `X w^T` is one large product outside, and norms are those of `M F`, where `F F^T = X X^T`
  and F (N x N) is narrower than X: a Cholesky factor, once per image (`span`). Sums of squares,
  unlike `rowsum((M G) * M)`, need no column of M a second time and cannot cancel.

`keep_best`: a program loads a few rows, maps scores to integers of the same order, and finds each
row's K-th best bit by bit: the largest integer that at least K scores reach. Higher scores are
kept, then equal ones from the lowest index up to K: exactly `ops.top_k_mask`, without a sort.

Forward only: inference, and the first pass of `two_pass_loss`. Interpreted (`TRITON_INTERPRET=1`)
it runs on a CPU, for tests.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.patches.kernels.interface import PatchDecision

_SPAN_IMAGES = 256  # factored together
_KEEP_ROWS = 4  # pairs per program of `keep_best`


class Tiles(NamedTuple):
    """Tile sizes. Registers are the limit: M alone is 64 x 256 numbers."""

    texts: int
    """Per program, one after the other, so that the image's data stays in the cache."""
    columns: int
    """Of patches or F, at a time."""
    warps: int
    stages: int


TILES = Tiles(texts=1, columns=128, warps=4, stages=1)  # half precision, by gram, one weight net
WIDE_TILES = TILES._replace(warps=8)  # half precision otherwise: needs more registers
FLOAT_TILES = Tiles(texts=4, columns=32, warps=8, stages=1)


def tiles_of(dtype: torch.dtype, *, gram: bool, nets: int) -> Tiles:
    """Return the tile sizes for patches of a dtype."""
    if dtype == torch.float32:
        return FLOAT_TILES
    return TILES if gram and nets == 1 else WIDE_TILES


@triton.jit
@no_type_check  # Triton's language, which type checkers cannot follow
def _best_cosines(
    logits,  # (R, S, N), of the first weight net
    live,  # (R, J, N): D of the first selection
    logits_dense,
    live_dense,
    extra,  # (R, J, N): the extra token's row of M
    vectors,  # (R, N, C): patches; gram: F
    words,  # (J, L, C), unit; gram: w X^T (R, J, L, N)
    per_word,  # (R, J, L), out
    per_token,  # (R, J, P), out
    num_texts,
    num_words,
    NUM_SLOTS: tl.constexpr,  # strides: as constants they allow wide loads
    NUM_PATCHES: tl.constexpr,
    WIDTH: tl.constexpr,
    GRAM: tl.constexpr,
    NETS: tl.constexpr,
    HAS_EXTRA: tl.constexpr,
    EXTRA_MAY_LACK: tl.constexpr,
    TEXTS: tl.constexpr,
    TOKENS: tl.constexpr,
    PATCHES: tl.constexpr,
    WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    token = tl.arange(0, TOKENS)
    patch = tl.arange(0, PATCHES)
    word = tl.arange(0, WORDS)
    column = tl.arange(0, COLUMNS)
    is_patch = patch < NUM_PATCHES
    is_word = word < num_words
    slot_at = token[:, None] * NUM_PATCHES + patch[None, :]
    slot_mask = (token < NUM_SLOTS)[:, None] & is_patch[None, :]
    image_logits = image * (NUM_SLOTS * NUM_PATCHES)
    image_vectors = vectors + image * (NUM_PATCHES * WIDTH)

    for step in range(TEXTS):
        text = tl.program_id(0) * TEXTS + step
        if text < num_texts:
            pair = image * num_texts + text
            row = pair * NUM_PATCHES
            mixing = tl.zeros((TOKENS, PATCHES), tl.float32)
            for net in tl.static_range(NETS):
                # Loaded again for each text, from the cache: registers are the limit.
                slots, keeps = logits, live
                if net == 1:
                    slots, keeps = logits_dense, live_dense
                slots = tl.load(slots + image_logits + slot_at, slot_mask, 0.0)
                kept = tl.load(keeps + row + patch, is_patch, 0.0)[None, :] > 0.5
                best = tl.max(tl.where(kept, slots, float("-inf")), 1)
                powers = tl.where(kept, tl.exp(slots - best[:, None]), 0.0)
                total = tl.sum(powers, 1)
                mixing += powers * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
            last = tl.load(extra + row + patch, is_patch, 0.0)
            if HAS_EXTRA:
                mixing = tl.where(token[:, None] == NUM_SLOTS, last[None, :], mixing)
            mixing = mixing.to(vectors.dtype.element_ty)

            products = tl.zeros((TOKENS, WORDS), tl.float32)
            squares = tl.zeros((TOKENS, COLUMNS), tl.float32)
            if GRAM:
                own = words + pair * num_words * NUM_PATCHES
                at_word = word[:, None] * NUM_PATCHES + patch[None, :]
                word_products = tl.load(own + at_word, is_word[:, None] & is_patch[None, :], 0.0)
                products = tl.dot(mixing, tl.trans(word_products), input_precision="ieee")
            for start in range(0, WIDTH, COLUMNS):
                inside = start + column < WIDTH
                at = patch[:, None] * WIDTH + start + column[None, :]
                tile = tl.load(image_vectors + at, is_patch[:, None] & inside[None, :], 0.0)
                mixed = tl.dot(mixing, tile, input_precision="ieee")  # (TOKENS, COLUMNS)
                squares += mixed * mixed
                if not GRAM:
                    own = words + text.to(tl.int64) * num_words * WIDTH
                    at_word = word[:, None] * WIDTH + start + column[None, :]
                    unit = tl.load(own + at_word, is_word[:, None] & inside[None, :], 0.0)
                    products += tl.dot(mixed.to(unit.dtype), tl.trans(unit), input_precision="ieee")
            norms = tl.maximum(tl.sqrt(tl.sum(squares, 1)), 1e-12)
            cosines = products * (1.0 / norms)[:, None]
            present = NUM_SLOTS + HAS_EXTRA
            if EXTRA_MAY_LACK:
                present = NUM_SLOTS + (tl.sum(last, 0) > 0).to(tl.int32)
            by_word = tl.where((token < present)[:, None], cosines, float("-inf"))
            by_token = tl.where(is_word[None, :], cosines, float("-inf"))
            tl.store(per_word + pair * num_words + word, tl.max(by_word, 0), is_word)
            at_token = pair * (NUM_SLOTS + HAS_EXTRA) + token
            tl.store(per_token + at_token, tl.max(by_token, 1), token < NUM_SLOTS + HAS_EXTRA)


def best_cosines(
    logits: tuple[Float[Tensor, "images slots patches"], ...],
    decisions: tuple[PatchDecision, ...],
    extra: Float[Tensor, "images texts patches"] | None,
    patches: Float[Tensor, "images patches dim"],
    factor: Float[Tensor, "images patches columns"] | None,
    words: Float[Tensor, "texts words dim"],
    *,
    extra_may_lack: bool,
) -> tuple[Float[Tensor, "images texts words"], Float[Tensor, "images texts tokens"]]:
    """Return the best cosine of each word and of each token; with a `factor`, by gram."""
    num_images, num_slots, num_patches = logits[0].shape
    num_texts, num_words, _ = words.shape
    vectors, words = patches, words.to(patches.dtype)
    if factor is not None:
        vectors, repeated = factor, words.flatten(0, 1).expand(num_images, -1, -1)
        words = torch.bmm(repeated, patches.transpose(1, 2))  # (R, J * L, N)
    lives = [decision.live.contiguous() for decision in decisions]
    num_tokens = num_slots + (extra is not None)
    per_word = patches.new_empty(num_images, num_texts, num_words, dtype=torch.float32)
    per_token = patches.new_empty(num_images, num_texts, num_tokens, dtype=torch.float32)
    tiles = tiles_of(vectors.dtype, gram=factor is not None, nets=len(decisions))
    launch: Any = _best_cosines[(triton.cdiv(num_texts, tiles.texts), num_images)]
    launch(
        logits[0].contiguous(), lives[0], logits[-1].contiguous(), lives[-1],
        lives[0] if extra is None else extra.contiguous(),
        vectors.contiguous(), words.contiguous(), per_word, per_token, num_texts, num_words,
        NUM_SLOTS=num_slots, NUM_PATCHES=num_patches, WIDTH=vectors.shape[-1],
        GRAM=factor is not None, NETS=len(decisions), HAS_EXTRA=int(extra is not None),
        EXTRA_MAY_LACK=extra_may_lack, TEXTS=tiles.texts,
        TOKENS=max(16, triton.next_power_of_2(num_tokens)),
        PATCHES=max(16, triton.next_power_of_2(num_patches)),
        WORDS=max(16, triton.next_power_of_2(num_words)),
        COLUMNS=tiles.columns, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return per_word, per_token


def span(patches: Float[Tensor, "images patches dim"]) -> Float[Tensor, "images patches columns"]:
    """Return F with `F F^T = X X^T`: the patches in a narrower basis, that of their span.

    Equal patches make X X^T singular; 1e-10 of its largest value, added to the diagonal in float64,
    makes it regular and is far below half precision. Zeros fill the last tile.
    """
    factors = []
    for chunk in patches.split(_SPAN_IMAGES):
        exact = chunk.double()
        gram = exact @ exact.transpose(1, 2)
        diagonal = gram.diagonal(dim1=1, dim2=2)
        diagonal += (1e-10 * diagonal.amax(1, keepdim=True)).clamp_min(1e-30)
        factors.append(torch.linalg.cholesky_ex(gram).L.to(chunk.dtype))
    return F.pad(torch.cat(factors), (0, -patches.shape[1] % TILES.columns))


@triton.jit
@no_type_check  # Triton's language, which type checkers cannot follow
def _keep_best(
    score,  # (R, J, N)
    real,  # (R, N), 1 where a patch is real
    num_kept,  # (R,): K
    live,  # (R, J, N), out: 1 kept, 0 dropped
    extra,  # (R, J, N), out: softmax of the scores over the dropped
    num_rows,  # R * J
    num_texts,
    num_patches,
    MASKED: tl.constexpr,
    LOWEST: tl.constexpr,  # the lowest integer, which no score maps to
    ROWS: tl.constexpr,
    PATCHES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    patch = tl.arange(0, PATCHES)
    inside = (row < num_rows)[:, None] & (patch < num_patches)[None, :]
    at = row[:, None] * num_patches + patch[None, :]
    image = row // num_texts
    exists = inside
    if MASKED:
        there = tl.load(real + image[:, None] * num_patches + patch[None, :], inside, 0)
        exists = inside & (there != 0)
    values = tl.load(score + at, inside, 0.0)
    budget = tl.load(num_kept + image, row < num_rows, 1)

    # NaN ranks below everything real, -0.0 is 0.0; negative floats order in reverse.
    comparable = tl.where(values == values, values, float("-inf")) + 0.0
    bits = comparable.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(exists, key, LOWEST)
    at_least = tl.sum((key >= 0).to(tl.int32), 1)
    limit = tl.where(at_least >= budget, 0, LOWEST).to(tl.int32)  # (ROWS,): the K-th best key
    for step in range(31):
        higher = limit | (1 << (30 - step))
        at_least = tl.sum((key >= higher[:, None]).to(tl.int32), 1)
        limit = tl.where(at_least >= budget, higher, limit)

    above = exists & (key > limit[:, None])
    equal = exists & (key == limit[:, None])
    num_equal = budget - tl.sum(above.to(tl.int32), 1)
    place = tl.cumsum(equal.to(tl.int32), 1)
    kept = above | (equal & (place <= num_equal[:, None]))
    tl.store(live + at, kept.to(tl.float32), inside)
    powers = tl.where(exists & (kept == 0), tl.exp(values), 0.0)  # scores are small: no overflow
    total = tl.sum(powers, 1)
    weights = powers / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(extra + at, weights, inside)


def keep_best(
    score: Float[Tensor, "images texts patches"],
    num_kept: int | Int[Tensor, " images"],
    mask: Bool[Tensor, "images patches"] | None,
) -> tuple[Float[Tensor, "images texts patches"], Float[Tensor, "images texts patches"]]:
    """Return D of the exact top-K, and the extra weights `(1 - D) e^s / sum (1 - D) e^s`."""
    num_images, num_texts, num_patches = score.shape
    score = score.float().contiguous()
    if isinstance(num_kept, int):
        num_kept = torch.full((num_images,), num_kept, device=score.device)
    live, extra = torch.empty_like(score), torch.empty_like(score)
    launch: Any = _keep_best[(triton.cdiv(num_images * num_texts, _KEEP_ROWS),)]
    launch(
        score, score if mask is None else mask.to(torch.uint8).contiguous(),
        num_kept.to(torch.int32).contiguous(), live, extra,
        num_images * num_texts, num_texts, num_patches,
        MASKED=mask is not None, LOWEST=-(2**31), ROWS=_KEEP_ROWS,
        PATCHES=triton.next_power_of_2(num_patches), num_warps=4,
    )  # fmt: skip
    return live, extra
