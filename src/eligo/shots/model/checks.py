"""Checks of a pointer selector's input: shapes always, values where reading them is free.

See `eligo.ops._checks` for where values are free.
"""

from typing import NoReturn

import torch
from torch import Tensor

from eligo.errors import InputError
from eligo.ops._checks import values_are_free


def check_shapes(
    query: Tensor, candidates: Tensor, mask: Tensor | None, *, query_dim: int, cand_dim: int
) -> None:
    """Query (batch, dim), candidates (batch, pool, dim), mask (batch, pool)."""
    if query.ndim != 2 or query.shape[-1] != query_dim:
        _wrong("query_emb", query, f"(batch, {query_dim})")
    rows = len(query)
    if candidates.ndim != 3 or (candidates.shape[0], candidates.shape[2]) != (rows, cand_dim):
        _wrong("cand_emb", candidates, f"({rows}, pool, {cand_dim})")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != candidates.shape[:2]):
        _wrong("cand_mask", mask, f"bool {tuple(candidates.shape[:2])}, True where real")


def check_embeddings(
    name: str, embeddings: Tensor, projected: Tensor, mask: Tensor | None = None
) -> None:
    """Every real row is finite and not zero.

    Reads the projected rows, which are narrower: they are not finite, or zero, where rows are.
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
    norms = torch.linalg.vector_norm(rows.detach().float(), dim=-1)
    bad = ~norms.isfinite() | (norms == 0)
    return bad if mask is None else bad & mask


def check_labels(labels: Tensor, mask: Tensor) -> None:
    """Labels are -1, or real candidates."""
    rows, count = mask.shape
    if labels.ndim != 2 or labels.shape[0] != rows or labels.is_floating_point():
        _wrong("labels", labels, f"integers ({rows}, steps)")
    if values_are_free(labels, mask):
        expected = f"expected a candidate in [0, {count}), or -1 to ignore the step"
        _refuse("labels", labels, (labels < -1) | (labels >= count), expected)
        if count:
            padding = (labels >= 0) & ~mask.gather(1, labels.clamp_min(0).long())
            _refuse("labels", labels, padding, f"which is padding (cand_mask); {expected}")


def check_scores(name: str, scores: Tensor | None, shape: tuple[int, ...]) -> None:
    """Teacher's scores: NaN where there is none, never infinite."""
    if scores is None:
        return
    if tuple(scores.shape) != shape:
        _wrong(name, scores, f"{shape}")
    if values_are_free(scores):
        _refuse(name, scores, scores.isinf(), "expected a number, or NaN for none")


def check_weights(weights: Tensor | None, num_rows: int) -> None:
    """One finite weight >= 0 per row."""
    if weights is None:
        return
    if tuple(weights.shape) != (num_rows,):
        _wrong("weights", weights, f"({num_rows},)")
    if values_are_free(weights):
        _refuse("weights", weights, ~weights.isfinite() | (weights < 0), "expected >= 0")


def _refuse(name: str, values: Tensor, bad: Tensor, why: str) -> None:
    if bad.any():
        index = bad.nonzero()[0].tolist()
        raise InputError(f"{name}: {index} is {values[tuple(index)].item()}, {why}")


def _wrong(name: str, got: Tensor, expected: str) -> NoReturn:
    raise InputError(f"{name}: got {got.dtype} {tuple(got.shape)}, expected {expected}")
