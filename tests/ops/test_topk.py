"""Exact top-k and Gumbel top-k."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.errors import InputError
from eligo.ops import gumbel_noise, gumbel_top_k, top_k, top_k_mask
from strategies import Ragged, quick, ragged, rows


def oracle(scores: list[float], mask: list[bool], k: int, width: int) -> list[int]:
    real = [i for i, valid in enumerate(mask) if valid]
    best = sorted(real, key=lambda i: (-scores[i], i))[:k]
    return best + [-1] * (width - len(best))


@quick
@given(ragged(), st.integers(0, 10), st.sampled_from([torch.float32, torch.bfloat16]))
def test_equals_sorting_in_python(case: Ragged, k: int, dtype: torch.dtype):
    scores = case.scores.to(dtype)
    result = top_k(scores, k, case.mask)
    assert result.shape == (*scores.shape[:-1], k)
    for out, row, mask in zip(rows(result), rows(scores), rows(case.mask), strict=True):
        assert out.tolist() == oracle(row.tolist(), mask.tolist(), k, k)


@quick
@given(ragged())
def test_each_row_has_its_own_budget(case: Ragged):
    budgets = torch.randint(0, 10, case.scores.shape[:-1], generator=case.generator)
    width = int(budgets.max())
    result = top_k(case.scores, budgets, case.mask)
    assert result.shape[-1] == width
    assert top_k(case.scores, budgets, case.mask, width=width + 2)[..., :width].equal(result)
    flat = budgets.flatten().tolist()
    for out, row, mask, k in zip(
        rows(result), rows(case.scores), rows(case.mask), flat, strict=True
    ):
        assert out.tolist() == oracle(row.tolist(), mask.tolist(), k, width)
    kept = top_k_mask(case.scores, budgets, case.mask)
    assert kept.sum(-1).equal(torch.minimum(budgets, case.mask.sum(-1)))


def test_order_of_special_values():
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([nan, -inf, -0.0, 0.0, inf, -1e-40, 1e-40, -3e38])
    # -0.0 ties with 0.0; -inf is real and beats what is masked; NaN is never preferred.
    assert top_k(scores, 8).tolist() == [4, 6, 2, 3, 5, 7, 0, 1]
    mask = torch.tensor([False, True] + [False] * 6)
    assert top_k(scores, 3, mask).tolist() == [1, -1, -1]


def test_ties_go_to_the_lowest_index_in_long_rows():
    scores = torch.zeros(2, 5000)
    scores[:, 4321] = 1.0
    assert top_k(scores, 4).tolist() == [[4321, 0, 1, 2]] * 2


@quick
@given(ragged(batch=(3,)), st.integers(0, 5))
def test_independent_of_batch_and_padding(case: Ragged, k: int):
    together = top_k(case.scores, k, case.mask)
    padded = top_k(
        torch.nn.functional.pad(case.scores, (0, 3), value=9.0),
        k,
        torch.nn.functional.pad(case.mask, (0, 3), value=False),
    )
    assert padded.equal(together)
    for i in range(3):
        assert top_k(case.scores[i], k, case.mask[i]).equal(together[i])


def test_gumbel_samples_by_softmax_without_replacement():
    probabilities = torch.tensor([0.5, 0.3, 0.2, 0.9])
    mask = torch.tensor([True, True, True, False]).expand(20000, 4)
    generator = torch.Generator().manual_seed(1)
    picks = gumbel_top_k(probabilities.log().expand(20000, 4), 3, mask, generator=generator)
    assert picks.sort(-1).values.eq(torch.tensor([0, 1, 2])).all()
    first = picks[:, 0].bincount(minlength=4) / 20000
    torch.testing.assert_close(first, torch.tensor([0.5, 0.3, 0.2, 0.0]), atol=0.02, rtol=0)
    # P(second = 1) = sum over other firsts f of p_f p_1 / (1 - p_f)
    second = (picks[:, 1] == 1).float().mean().item()
    assert second == pytest.approx(0.5 * 0.3 / 0.5 + 0.2 * 0.3 / 0.8, abs=0.02)


def test_gumbel_noise_has_the_right_moments_and_repeats():
    like = torch.zeros(50000, dtype=torch.bfloat16)
    noise = gumbel_noise(like, torch.Generator().manual_seed(3))
    assert noise.dtype == torch.float32
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.05)
    assert noise.equal(gumbel_noise(like, torch.Generator().manual_seed(3)))


def test_invalid_budgets_are_refused():
    scores = torch.zeros(2, 3)
    with pytest.raises(InputError, match="k=-1"):
        top_k(scores, -1)
    with pytest.raises(InputError, match="width"):
        top_k(scores, 2, width=3)
    with pytest.raises(InputError, match="covers"):
        top_k(scores, torch.tensor([1, 3]), width=2)
    with pytest.raises(InputError, match="budgets"):
        top_k(scores, torch.tensor([1, -3]))


@quick
@given(ragged(min_candidates=1), st.integers(0, 5))
def test_sorting_and_comparing_integers_agree(case: Ragged, k: int):
    """Without a mask short rows are sorted; with one, and in long rows, integers are compared."""
    k = min(k, case.scores.shape[-1])
    scores = case.scores.round()  # ties
    scores[..., 0] = torch.nan
    assert top_k(scores, k).equal(top_k(scores, k, torch.ones_like(scores, dtype=torch.bool)))
