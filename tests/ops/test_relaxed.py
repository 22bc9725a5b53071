"""The relaxed top-k: exact sums, gradients, hard limit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.errors import InputError
from eligo.ops import relaxed_top_k, straight_through, straight_through_top_k, top_k_mask
from strategies import Ragged, quick, ragged, rows


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def oracle(scores: list[float], k: int, temperature: float) -> list[float]:
    """Float64 bisection over real candidates only."""
    if k >= len(scores):
        return [1.0] * len(scores)
    if k == 0:
        return [0.0] * len(scores)
    low, high = min(scores) - 99 * temperature, max(scores) + 99 * temperature
    for _ in range(200):
        tau = (low + high) / 2
        if sum(sigmoid((s - tau) / temperature) for s in scores) > k:
            low = tau
        else:
            high = tau
    return [sigmoid((s - tau) / temperature) for s in scores]


@quick
@given(ragged(), st.integers(0, 9), st.sampled_from([0.1, 0.5, 1.0, 10.0]))
def test_equals_float64_bisection(case: Ragged, k: int, temperature: float):
    result = relaxed_top_k(case.scores, k, temperature, case.mask)
    assert result.shape == case.scores.shape
    for p, scores, mask in zip(rows(result), rows(case.scores), rows(case.mask), strict=True):
        expected = torch.tensor(oracle(scores[mask].tolist(), k, temperature))
        torch.testing.assert_close(p[mask], expected, atol=2e-6, rtol=2e-5)
        assert p[~mask].eq(0).all()


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_probabilities_sum_to_the_budget(spread: float):
    scores = torch.randn(4, 576) * spread
    budgets = torch.tensor([1, 100, 288, 575])
    p = relaxed_top_k(scores, budgets, 0.1)
    torch.testing.assert_close(p.sum(-1), budgets.float(), rtol=1e-5, atol=1e-4)


def test_a_large_common_offset_costs_no_precision():
    scores = torch.randint(-8, 8, (2, 100)) / 4.0  # exact, also 2^20 higher
    raised = relaxed_top_k(scores + 2**20, 7, 0.1)
    torch.testing.assert_close(raised, relaxed_top_k(scores, 7, 0.1), atol=1e-6, rtol=1e-5)
    ties = relaxed_top_k(torch.full((1000,), 1e30), 1, 0.1)
    torch.testing.assert_close(ties, torch.full((1000,), 1e-3))


def test_converges_to_the_hard_top_k():
    scores = torch.randn(3, 20)
    p = relaxed_top_k(scores, 5, 1e-5)
    assert (p > 0.5).equal(top_k_mask(scores, 5))


def test_gradient_equals_the_implicit_gradient():
    scores = torch.randn(2, 6, requires_grad=True)
    weights = torch.randn(2, 6)
    (relaxed_top_k(scores, 2, 0.7) * weights).sum().backward()
    step = 1e-4
    for row in range(2):
        for j in range(6):
            values = []
            for sign in (1, -1):
                moved = scores[row].tolist()
                moved[j] += sign * step
                p = oracle(moved, 2, 0.7)
                values.append(sum(a * b for a, b in zip(p, weights[row].tolist(), strict=True)))
            expected = (values[0] - values[1]) / (2 * step)
            assert scores.grad is not None
            assert scores.grad[row, j].item() == pytest.approx(expected, abs=1e-5)


def test_straight_through_is_hard_forward_and_reaches_every_competitor():
    scores = torch.randn(4, 7, requires_grad=True)
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[0, 4:] = False
    mask[1] = False
    mask[2, 2:] = False  # two real candidates for a budget of two: nothing competes
    kept = straight_through_top_k(scores, 2, 0.5, mask)
    assert kept.equal(top_k_mask(scores, 2, mask).float())
    (kept * torch.randn(4, 7)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[3].abs().gt(1e-6).all()
    assert scores.grad[0, :4].abs().gt(1e-6).all()
    assert scores.grad[~mask].eq(0).all()
    assert scores.grad[2].eq(0).all()


@pytest.mark.parametrize("scores", [[0.0, 1e4, -1e4], [5.0, 5.0, 5.0], [1e-38, 0.0, -1e-38]])
def test_saturated_and_tied_rows_stay_finite(scores: list[float]):
    tensor = torch.tensor(scores, requires_grad=True)
    p = relaxed_top_k(tensor, 1, 0.01)
    assert p.sum().item() == pytest.approx(1.0, abs=1e-5)
    p.pow(2).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.isfinite().all()


def test_straight_through_never_rounds():
    soft = torch.rand(1000)
    hard = torch.rand(1000) < 0.5
    assert straight_through(hard, soft).equal(hard.float())


@quick
@given(ragged(batch=(3,), min_candidates=1), st.integers(1, 5))
def test_independent_of_batch_and_padding(case: Ragged, k: int):
    together = relaxed_top_k(case.scores, k, 0.3, case.mask)
    wide = torch.nn.functional.pad(case.scores, (2, 3), value=torch.nan)
    wide_mask = torch.nn.functional.pad(case.mask, (2, 3), value=False)
    padded = relaxed_top_k(wide, k, 0.3, wide_mask)
    torch.testing.assert_close(padded[:, 2:-3], together, atol=1e-6, rtol=1e-5)
    for i in range(3):
        alone = relaxed_top_k(case.scores[i], k, 0.3, case.mask[i])
        torch.testing.assert_close(alone, together[i], atol=1e-6, rtol=1e-5)


def test_bfloat16_scores_give_float32_probabilities():
    scores = torch.randn(2, 50).bfloat16()
    p = relaxed_top_k(scores, 7, 0.2)
    assert p.dtype == torch.float32
    torch.testing.assert_close(p, relaxed_top_k(scores.float(), 7, 0.2))


def test_temperature_must_be_positive():
    with pytest.raises(InputError, match="temperature=0"):
        relaxed_top_k(torch.zeros(3), 1, 0.0)
