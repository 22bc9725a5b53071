"""Bad input to a pointer selector: what was got, what was expected, how to fix it.

Shapes are checked always, values where looking is free (see `eligo.ops._checks`).
"""

import torch
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free


def check_shapes(query: Tensor, candidates: Tensor, mask: Tensor | None, *, dims: dict) -> None:
    """Query (batch, dim), candidates (batch, pool, dim), mask (batch, pool)."""
    if query.ndim != 2 or query.shape[-1] != dims["query_emb"]:
        _wrong("query_emb", query, f"(batch, {dims['query_emb']})")
    expected = (query.shape[0], "pool", dims["cand_emb"])
    if (
        candidates.ndim != 3
        or candidates.shape[0] != expected[0]
        or candidates.shape[2] != expected[2]
    ):
        _wrong("cand_emb", candidates, f"({expected[0]}, pool, {expected[2]})")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != candidates.shape[:2]):
        _wrong("cand_mask", mask, f"bool {tuple(candidates.shape[:2])}, True where real")


def check_embeddings(
    name: str, embeddings: Tensor, projected: Tensor, mask: Tensor | None = None
) -> None:
    """Every real row is finite and has a direction.

    Looks at the projected rows, which are narrower: what is not finite, or zero, is so there too.
    """
    if not values_are_free(embeddings):
        return
    bad = _without_direction(projected, mask)
    if bad.any():
        whole = _without_direction(embeddings, mask)
        row = (whole if whole.any() else bad).nonzero()[0].tolist()
        norm = torch.linalg.vector_norm(embeddings[tuple(row)].detach().float()).item()
        raise InputError(
            f"{name}: row {row} has norm {norm}, expected finite numbers that are not all 0; embed "
            "it again, or leave it out (cand_mask False)"
        )


def _without_direction(rows: Tensor, mask: Tensor | None) -> Tensor:
    norms = torch.linalg.vector_norm(rows.detach().float(), dim=-1)  # one pass finds all
    bad = ~norms.isfinite() | (norms == 0)
    return bad if mask is None else bad & mask


def check_labels(labels: Tensor, mask: Tensor) -> None:
    """Labels are -1, or real candidates."""
    if labels.ndim != 2 or labels.shape[0] != mask.shape[0] or labels.is_floating_point():
        _wrong("labels", labels, f"integers ({mask.shape[0]}, steps)")
    if not values_are_free(labels, mask):
        return
    num_candidates = mask.shape[1]
    bad = (labels < -1) | (labels >= num_candidates)
    if bad.any():
        row, step = bad.nonzero()[0].tolist()
        raise InputError(
            f"labels: row {row}, step {step} is {int(labels[row, step])}, expected a candidate in "
            f"[0, {num_candidates}), or -1 to ignore the step"
        )
    if not num_candidates:
        return
    bad = (labels >= 0) & ~mask.gather(1, labels.clamp_min(0).long())
    if bad.any():
        row, step = bad.nonzero()[0].tolist()
        raise InputError(
            f"labels: row {row}, step {step} is {int(labels[row, step])}, which cand_mask says is "
            "padding; expected a real candidate, or -1 to ignore the step"
        )


def check_scores(name: str, scores: Tensor | None, shape: tuple[int, ...]) -> None:
    """Teacher's scores: NaN where there is none, never infinite."""
    if scores is None:
        return
    if tuple(scores.shape) != shape:
        _wrong(name, scores, f"{shape}")
    if values_are_free(scores) and scores.isinf().any():
        where = scores.isinf().nonzero()[0].tolist()
        raise InputError(f"{name}: {where} is infinite, expected a number, or NaN for none")


def check_weights(weights: Tensor | None, num_rows: int) -> None:
    """One finite weight >= 0 per row."""
    if weights is None:
        return
    if tuple(weights.shape) != (num_rows,):
        _wrong("weights", weights, f"({num_rows},)")
    if values_are_free(weights):
        bad = ~weights.isfinite() | (weights < 0)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise InputError(f"weights: row {row} is {weights[row].item()}, expected >= 0")


def _wrong(name: str, got: Tensor, expected: str) -> None:
    raise InputError(f"{name}: got {got.dtype} {tuple(got.shape)}, expected {expected}")
