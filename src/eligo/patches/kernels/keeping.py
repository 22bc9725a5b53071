"""The K best patches of every pair and what the dropped ones weigh, in one Triton kernel.

A sort of every row moves eight bytes of index for each score, several times; here a program holds
some rows on the chip and finds each row's K-th best score bit by bit: of the integers that order
like floats it is the largest that at least K scores reach. Scores above stay; of the equal ones the
lowest indices, until there are K: the selection of `ops.top_k_mask`, exactly, and no wait for the
device. Interpreted (`TRITON_INTERPRET=1`) it runs on a CPU, for tests.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

_ROWS = 4  # pairs per program


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
    LOWEST: tl.constexpr,  # of all integers: no score's
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
    wanted = budget - tl.sum(above.to(tl.int32), 1)
    place = tl.cumsum(equal.to(tl.int32), 1)
    kept = above | (equal & (place <= wanted[:, None]))
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
    """D of the exact top-K, and the extra token's weights `(1 - D) e^s / sum (1 - D) e^s`."""
    num_images, num_texts, num_patches = score.shape
    score = score.float().contiguous()
    if isinstance(num_kept, int):
        num_kept = torch.full((num_images,), num_kept, device=score.device)
    live, extra = torch.empty_like(score), torch.empty_like(score)
    launch: Any = _keep_best[(triton.cdiv(num_images * num_texts, _ROWS),)]
    launch(
        score,
        score if mask is None else mask.to(torch.uint8).contiguous(),
        num_kept.to(torch.int32).contiguous(),
        live,
        extra,
        num_images * num_texts,
        num_texts,
        num_patches,
        MASKED=mask is not None,
        LOWEST=-(2**31),
        ROWS=_ROWS,
        PATCHES=triton.next_power_of_2(num_patches),
        num_warps=4,
    )
    return live, extra
