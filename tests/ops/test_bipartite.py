"""Bipartite merging against a loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.errors import InputError
from eligo.ops import Matching, bipartite_match, merge, unmerge
from strategies import Ragged, quick, ragged, rows


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(
        sum(x * x for x in a) * sum(y * y for y in b)
    )


def oracle(features: list, mask: list[bool], num_merged: int) -> tuple[list[int], list[int]]:
    """Kept indices and, per token, the index of the token it ended in (-1 for padding)."""
    real = [i for i, valid in enumerate(mask) if valid]
    side_a, side_b = real[::2], real[1::2]
    pairs = []
    if side_b:
        for a in side_a:
            partner = max(side_b, key=lambda b: (cosine(features[a], features[b]), -b))
            pairs.append((cosine(features[a], features[partner]), a, partner))
    pairs.sort(key=lambda pair: (-pair[0], pair[1]))
    went = {a: partner for _, a, partner in pairs[:num_merged]}
    kept = [i for i in real if i not in went]
    return kept, [went.get(i, i) if i in real else -1 for i in range(len(mask))]


@quick
@given(ragged(), st.floats(0, 1))
def test_equals_loop(case: Ragged, share: float):
    num_tokens = case.scores.shape[-1]
    num_merged = int(share * (num_tokens // 2))
    features = case.randn(3)
    values, sizes = case.randn(2), case.randn().abs() + 0.1
    matching = bipartite_match(features, num_merged, case.mask)
    merged, new_sizes = merge(values, matching, sizes)
    restored = unmerge(merged, matching)
    assert matching.kept.shape[-1] == num_tokens - num_merged
    for i, mask in enumerate(rows(case.mask)):
        kept, ends = oracle(rows(features, 2)[i].tolist(), mask.tolist(), num_merged)
        padding = num_tokens - num_merged - len(kept)
        assert rows(matching.kept)[i].tolist() == kept + [-1] * padding
        expected = [-1 if end < 0 else kept.index(end) for end in ends]
        assert rows(matching.destination)[i].tolist() == expected
        for j, centre in enumerate(kept):
            members = [token for token, end in enumerate(ends) if end == centre]
            size = sum(rows(sizes)[i][member] for member in members)
            mean = sum(rows(sizes)[i][m] * rows(values, 2)[i][m] for m in members) / size
            torch.testing.assert_close(rows(new_sizes)[i][j], size)
            torch.testing.assert_close(rows(merged, 2)[i][j], mean)
            for member in members:
                assert rows(restored, 2)[i][member].equal(rows(merged, 2)[i][j])
        assert rows(restored, 2)[i][~mask].eq(0).all()
        assert rows(new_sizes)[i][len(kept) :].eq(0).all()


@quick
@given(ragged(batch=(3,)))
def test_each_row_has_its_own_number_of_merges(case: Ragged):
    num_tokens = case.scores.shape[-1]
    numbers = torch.randint(0, num_tokens // 2 + 1, (3,), generator=case.generator)
    features = case.randn(3)
    together = bipartite_match(features, numbers, case.mask)
    assert together.kept.shape == case.mask.shape
    for i, number in enumerate(numbers.tolist()):
        alone = bipartite_match(features[i], number, case.mask[i])
        assert together.kept[i, : num_tokens - number].equal(alone.kept)
        assert together.kept[i, num_tokens - number :].eq(-1).all()
        assert together.destination[i].equal(alone.destination)


def test_sizes_add_up_over_rounds():
    tokens, sizes = torch.randn(2, 16, 4), None
    origin = tokens
    for _ in range(3):
        tokens, sizes = merge(tokens, bipartite_match(tokens, tokens.shape[1] // 2), sizes)
    assert tokens.shape == (2, 2, 4)
    assert sizes is not None
    assert sizes.sum(-1).tolist() == [16.0, 16.0]
    # Weighted by size, three rounds of means are one mean.
    torch.testing.assert_close((tokens * sizes[..., None]).sum(1), origin.sum(1))


def test_equal_tokens_merge_without_loss():
    values = torch.randn(4, 3).repeat_interleave(2, 0)  # neighbours are twins
    matching = bipartite_match(values, 4)
    merged, sizes = merge(values, matching)
    assert sizes.tolist() == [2.0] * 4
    torch.testing.assert_close(unmerge(merged, matching), values)


def test_independent_of_batch_and_padding():
    features = torch.randn(2, 6, 3)
    alone = bipartite_match(features[0], 2)
    together = bipartite_match(features, 2)
    assert together.kept[0].equal(alone.kept)
    mask = torch.tensor([False, True, True, False, True, True, True, False, True])
    spread = torch.full((9, 3), torch.nan)
    spread[mask] = features[0]
    padded = bipartite_match(spread, 2, mask)
    places = mask.nonzero().squeeze(-1)
    assert padded.kept[:4].equal(places[alone.kept])
    assert padded.destination[mask].equal(alone.destination)
    values = torch.where(mask[:, None], spread, torch.nan)
    torch.testing.assert_close(merge(values, padded)[0][:4], merge(features[0], alone)[0])


def test_bfloat16_values_and_gradient():
    values = torch.randn(2, 8, 4).bfloat16().requires_grad_()
    matching = bipartite_match(values, 3)
    merged, sizes = merge(values, matching)
    assert merged.dtype == torch.bfloat16
    assert sizes.dtype == torch.float32
    merged.float().pow(2).sum().backward()
    assert values.grad is not None
    assert values.grad.ne(0).any(-1).all()


@pytest.mark.parametrize("num_merged", [-1, 4])
def test_cannot_merge_more_than_half(num_merged: int):
    with pytest.raises(InputError, match="expected 0 to 3"):
        bipartite_match(torch.randn(1, 7, 2), num_merged)
    with pytest.raises(InputError, match="expected 0 to 3"):
        bipartite_match(torch.randn(1, 7, 2), torch.tensor([num_merged]))


def test_matching_is_a_tuple():
    kept, destination = bipartite_match(torch.randn(4, 2), 0)
    assert isinstance(Matching(kept, destination), tuple)
    assert kept.tolist() == destination.tolist() == [0, 1, 2, 3]
