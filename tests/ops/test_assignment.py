"""Soft and hard assignments, fold and unfold, against loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.ops import fold, soft_assignment, top_k, unfold
from strategies import Ragged, quick, ragged, rows


def oracle(logits: list, centres: list[int], mask: list[bool], hard: bool) -> list[list[float]]:
    result = [[0.0] * len(mask) for _ in centres]
    real = [j for j, centre in enumerate(centres) if centre >= 0]
    for i, valid in enumerate(mask):
        if not valid:
            continue
        if i in centres:
            result[centres.index(i)][i] = 1.0
        elif real and hard:
            result[max(real, key=lambda j: (logits[j][i], -j))][i] = 1.0
        elif real:
            total = sum(math.exp(logits[j][i]) for j in real)
            for j in real:
                result[j][i] = math.exp(logits[j][i]) / total
    return result


@quick
@given(ragged(), st.integers(0, 4), st.booleans())
def test_equals_loop(case: Ragged, k: int, hard: bool):
    centres = top_k(case.scores, k, case.mask)
    logits = torch.randn(*centres.shape, case.scores.shape[-1], generator=case.generator)
    result = soft_assignment(logits, centres, case.mask, hard=hard)
    for out, row, picks, mask in zip(
        rows(result, 2), rows(logits, 2), rows(centres), rows(case.mask), strict=True
    ):
        expected = oracle(row.tolist(), picks.tolist(), mask.tolist(), hard)
        torch.testing.assert_close(
            out, torch.tensor(expected).reshape(out.shape), atol=1e-6, rtol=1e-5
        )


@quick
@given(ragged(min_candidates=1), st.integers(1, 4))
def test_weights_of_every_real_candidate_sum_to_one(case: Ragged, k: int):
    centres = top_k(case.scores, k, case.mask)
    logits = torch.randn(*centres.shape, case.scores.shape[-1], generator=case.generator)
    total = soft_assignment(logits, centres, case.mask).sum(-2)
    torch.testing.assert_close(total, case.mask.float())


def test_hard_has_the_gradient_of_soft():
    logits = torch.randn(2, 5, requires_grad=True)
    centres, weights = torch.tensor([0, 3]), torch.randn(2, 5)
    gradients = []
    for hard in (False, True):
        loss = (soft_assignment(logits, centres, hard=hard) * weights).sum()
        gradients.append(torch.autograd.grad(loss, logits)[0])
    assert gradients[0].equal(gradients[1])
    assert gradients[0][:, [1, 2, 4]].abs().gt(1e-6).all()
    assert gradients[0][:, [0, 3]].eq(0).all()


@quick
@given(ragged(), st.integers(0, 4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_fold_and_unfold_equal_loops(case: Ragged, num_kept: int, dtype: torch.dtype):
    values = case.randn(3).to(dtype)
    batch, num = case.scores.shape[:-1], case.scores.shape[-1]
    weights = torch.rand(*batch, num_kept, num, generator=case.generator)
    weights = weights * case.mask.unsqueeze(-2)
    folded = fold(values, weights, case.mask)
    unfolded = unfold(folded, weights)
    assert folded.dtype == unfolded.dtype == dtype
    tolerance = (
        {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    )
    for out, back, xs, row in zip(
        rows(folded, 2), rows(unfolded, 2), rows(values.float(), 2), rows(weights, 2), strict=True
    ):
        for j in range(num_kept):
            size = sum(row[j].tolist())
            expected = sum((w * x for w, x in zip(row[j], xs, strict=True)), torch.zeros(3))
            expected = expected / size if size else expected
            torch.testing.assert_close(out[j].float(), expected, **tolerance)
        for i in range(num):
            size = sum(row[:, i].tolist())
            expected = sum(
                (w * y for w, y in zip(row[:, i], out.float(), strict=True)), torch.zeros(3)
            )
            expected = expected / size if size else expected
            torch.testing.assert_close(back[i].float(), expected, **tolerance)


def test_padding_is_never_read():
    values = torch.tensor([[1.0], [3.0], [torch.nan]], requires_grad=True)
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([True, True, False])
    folded = fold(values, weights, mask)
    assert folded.tolist() == [[2.0], [0.0]]
    folded.sum().backward()
    assert values.grad is not None
    assert weights.grad is not None
    assert values.grad.isfinite().all()
    assert weights.grad.isfinite().all()


def test_fold_is_a_mean_so_norms_do_not_grow():
    values = torch.ones(100, 4)
    assert fold(values, torch.rand(7, 100)).sub(1).abs().max() < 1e-5


def test_weighted_form_of_the_merger():
    """y_j = sum A_ij u_i x_i / sum A_ij u_i: weights multiply the assignment."""
    logits, x, u = torch.randn(2, 6), torch.randn(6, 3), torch.rand(6)
    assignment = soft_assignment(logits, torch.tensor([1, 4])) * u
    expected = torch.stack(
        [(assignment[j][:, None] * x).sum(0) / assignment[j].sum() for j in (0, 1)]
    )
    torch.testing.assert_close(fold(x, assignment), expected)


@pytest.mark.parametrize("hard", [False, True])
def test_padding_columns_change_nothing(hard: bool):
    logits, centres = torch.randn(3, 5), torch.tensor([0, 2, -1])
    mask = torch.tensor([True, True, True, True, False])
    expected = soft_assignment(logits[:2, :4], centres[:2], hard=hard)
    result = soft_assignment(logits, centres, mask, hard=hard)
    torch.testing.assert_close(result[:2, :4], expected)
    assert result[2].eq(0).all()
    assert result[:, 4].eq(0).all()


@quick
@given(ragged(min_candidates=1), st.booleans())
def test_padded_false_gives_the_same_assignment(case: Ragged, hard: bool):
    centres = top_k(case.scores, 1)
    logits = torch.randn(*centres.shape, case.scores.shape[-1], generator=case.generator)
    found = soft_assignment(logits, centres, hard=hard, padded=False)
    assert found.equal(soft_assignment(logits, centres, hard=hard))
    assert found.dtype == torch.float32


@pytest.mark.parametrize("masked", [False, True])
def test_unpadded_hard_assignment_equals_the_general_one(masked: bool):
    source = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 4, 9, generator=source).mul(2).round()  # with ties
    centres = torch.rand(2, 3, 9, generator=source).argsort(-1)[..., :4]
    mask = torch.rand(2, 3, 9, generator=source) < 0.7 if masked else None
    if mask is not None:
        mask = mask.scatter(-1, centres, True)
    short = soft_assignment(logits, centres, mask, hard=True, padded=False)
    long = soft_assignment(logits, centres, mask, hard=True)
    assert short.equal(long)
