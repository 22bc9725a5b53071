"""Masked softmax and mean against loops."""

import math

import pytest
import torch
from hypothesis import given

from eligo.errors import InputError
from eligo.ops import masked_log_softmax, masked_mean, masked_softmax
from strategies import Ragged, quick, ragged, rows

DTYPES = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


def softmax_oracle(scores: list[float], mask: list[bool]) -> list[float]:
    total = sum(math.exp(s) for s, real in zip(scores, mask, strict=True) if real)
    return [math.exp(s) / total if real else 0.0 for s, real in zip(scores, mask, strict=True)]


@quick
@given(ragged())
def test_softmax_equals_loop(case: Ragged):
    result = masked_softmax(case.scores, case.mask)
    for row, scores, mask in zip(rows(result), rows(case.scores), rows(case.mask), strict=True):
        expected = softmax_oracle(scores.tolist(), mask.tolist())
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-6, rtol=1e-5)


@quick
@given(ragged(min_candidates=1))
def test_log_softmax_is_its_logarithm(case: Ragged):
    expected = masked_softmax(case.scores, case.mask).log()
    torch.testing.assert_close(
        masked_log_softmax(case.scores, case.mask), expected, atol=1e-5, rtol=1e-5
    )


@quick
@given(ragged())
def test_mean_equals_loop(case: Ragged):
    values = case.randn(2)
    result = masked_mean(values, case.mask)
    for row, vectors, mask in zip(rows(result), rows(values, 2), rows(case.mask), strict=True):
        kept = [v for v, real in zip(vectors, mask, strict=True) if real]
        expected = torch.stack(kept).mean(0) if kept else torch.zeros(2)
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_never_read(dtype: torch.dtype):
    values = torch.randn(2, 4).to(dtype).requires_grad_()
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    dirty = torch.where(mask, values, torch.nan)
    for function in (masked_softmax, masked_mean):
        result = function(dirty, mask)
        expected = function(values.detach()[:1, :2], mask[:1, :2])
        torch.testing.assert_close(result[:1, ..., :2] if result.ndim > 1 else result[:1], expected)
        assert result[1].eq(0).all()
        (gradient,) = torch.autograd.grad(result.float().pow(2).sum(), values, retain_graph=True)
        assert gradient.isfinite().all()
        assert gradient[~mask].eq(0).all()


def test_bfloat16_accumulates_in_float32():
    values = torch.randn(64, 999).bfloat16()
    # Rounded once, at the end: a sum that is bfloat16 anywhere on the way differs.
    expected = values.double().mean(-1).bfloat16()
    assert masked_mean(values, torch.ones(64, 999, dtype=torch.bool)).equal(expected)
    assert masked_softmax(values).dtype == torch.float32


def test_softmax_over_another_axis_with_broadcast_mask():
    logits = torch.randn(2, 3, 4)
    mask = torch.tensor([True, False, True])[:, None]
    result = masked_softmax(logits, mask, dim=-2)
    torch.testing.assert_close(result.sum(-2), torch.ones(2, 4))
    assert result[:, 1].eq(0).all()


def test_extreme_logits_stay_exact():
    logits = torch.tensor([-1e30, -1e30, 0.0])
    result = masked_softmax(logits, torch.tensor([True, True, False]))
    assert result.tolist() == [0.5, 0.5, 0.0]


def test_mismatched_mask_is_refused():
    with pytest.raises(InputError, match="begin with the mask's shape"):
        masked_mean(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool))
