"""Gather and align of ragged rows against loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.errors import InputError
from eligo.ops import align_left, align_right, gather, kept_mask
from strategies import Ragged, quick, ragged, rows


@quick
@given(ragged(), st.integers(0, 5), st.sampled_from([(), (3,), (2, 2)]))
def test_gather_equals_loop(case: Ragged, width: int, features: tuple[int, ...]):
    values = case.randn(*features)
    last = case.scores.shape[-1]
    indices = torch.randint(-1, last, (*case.scores.shape[:-1], width), generator=case.generator)
    result = gather(values, indices)
    assert result.shape == (*indices.shape, *features)
    kept = len(features) + 1
    for out, row, picks in zip(rows(result, kept), rows(values, kept), rows(indices), strict=True):
        for j, pick in enumerate(picks.tolist()):
            expected = torch.zeros(features) if pick < 0 else row[pick]
            assert out[j].equal(expected)


def test_gather_broadcasts_images_over_texts():
    values, indices = torch.randn(2, 1, 5, 3), torch.randint(-1, 5, (2, 4, 2))
    expected = gather(values.expand(2, 4, 5, 3), indices)
    assert gather(values, indices).equal(expected)
    assert gather(values[:1], indices[:, :1]).shape == (2, 1, 2, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_gather_keeps_the_dtype(dtype: torch.dtype):
    values = torch.tensor([1, 0, 1]).to(dtype)
    result = gather(values, torch.tensor([2, 1, -1]))
    assert result.dtype == dtype
    assert result.tolist() == [1, 0, 0]


def test_gather_gradient_skips_padding_and_nan():
    values = torch.tensor([torch.nan, 2.0, 3.0], requires_grad=True)
    result = gather(values, torch.tensor([1, 1, -1]))
    assert result.tolist() == [2.0, 2.0, 0.0]
    result.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("values", "indices"), [((3,), (2, 2)), ((3, 5), (2, 2)), ((2, 3, 5), (3, 2, 2))]
)
def test_mismatched_batches_are_refused(values: tuple[int, ...], indices: tuple[int, ...]):
    with pytest.raises(InputError, match="gather"):
        gather(torch.zeros(values), torch.zeros(indices, dtype=torch.long))


@quick
@given(ragged(), st.integers(0, 3))
def test_align_equals_loop(case: Ragged, extra: int):
    length = int(case.mask.sum(-1).max()) + extra if case.mask.numel() else extra
    left, right = align_left(case.mask, length), align_right(case.mask, length)
    for one, other, mask in zip(rows(left), rows(right), rows(case.mask), strict=True):
        real = [i for i, valid in enumerate(mask.tolist()) if valid]
        padding = [-1] * (length - len(real))
        assert one.tolist() == real + padding
        assert other.tolist() == padding + real
    assert align_left(case.mask).shape == case.mask.shape


def test_align_never_truncates():
    with pytest.raises(InputError, match="covers the fullest row"):
        align_left(torch.ones(2, 3, dtype=torch.bool), 2)


@quick
@given(ragged())
def test_kept_mask_inverts_align(case: Ragged):
    assert kept_mask(align_left(case.mask), case.mask.shape[-1]).equal(case.mask)
    assert kept_mask(align_right(case.mask).int(), case.mask.shape[-1]).equal(case.mask)


@quick
@given(ragged(min_candidates=1))
def test_padded_false_gathers_the_same(case: Ragged):
    values, indices = case.randn(3), case.scores.argsort(-1)
    assert gather(values, indices, padded=False).equal(gather(values, indices))
