"""Farthest points, greedy DPP, distinctness and ordered dither."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.errors import InputError
from eligo.ops import (
    distinctness,
    farthest_points,
    greedy_dpp,
    greedy_mmr,
    greedy_redundancy,
    nearest_other,
    ordered_dither,
    top_k,
)
from strategies import Ragged, production, quick, ragged, rows


def brute_farthest(distances: list, mask: list[bool], k: int) -> list[int]:
    real = [i for i, valid in enumerate(mask) if valid]
    picked: list[int] = []
    while len(picked) < min(k, len(real)):
        best, best_value = -1, -float("inf")
        for i in real:
            others = picked or [j for j in real if j != i]
            value = min((distances[i][j] for j in others), default=float("inf"))
            if i not in picked and value > best_value:
                best, best_value = i, value
        picked.append(best)
    return picked


def brute_dpp(kernel: np.ndarray, mask: list[bool], k: int) -> list[int]:
    """The determinant of every extension, from scratch, in float64."""
    real = [i for i, valid in enumerate(mask) if valid]
    picked: list[int] = []
    while len(picked) < min(k, len(real)):
        left = [i for i in real if i not in picked]
        volumes = [np.linalg.det(kernel[np.ix_([*picked, i], [*picked, i])]) for i in left]
        picked.append(left[int(np.argmax(volumes))])
    return picked


def padded(picked: list[int], width: int) -> list[int]:
    return picked + [-1] * (width - len(picked))


@quick
@given(ragged(), st.integers(0, 9))
def test_farthest_points_equals_loops(case: Ragged, k: int):
    places = case.randn(2)
    distances = (places.unsqueeze(-2) - places.unsqueeze(-3)).norm(dim=-1)
    result = farthest_points(distances, k, case.mask)
    assert result.shape == (*case.mask.shape[:-1], k)
    for out, row, mask in zip(rows(result), rows(distances, 2), rows(case.mask), strict=True):
        assert out.tolist() == padded(brute_farthest(row.tolist(), mask.tolist(), k), k)


@quick
@given(ragged(), st.integers(0, 9))
def test_ties_of_distances_go_to_the_lowest_index(case: Ragged, k: int):
    places = case.scores.round()
    distances = (places.unsqueeze(-1) - places.unsqueeze(-2)).abs()
    result = farthest_points(distances, k, case.mask)
    for out, row, mask in zip(rows(result), rows(distances, 2), rows(case.mask), strict=True):
        assert out.tolist() == padded(brute_farthest(row.tolist(), mask.tolist(), k), k)


@quick
@given(ragged(), st.integers(0, 9))
def test_greedy_dpp_equals_determinants(case: Ragged, k: int):
    vectors = case.randn(12)  # more than candidates: full rank
    kernel = vectors @ vectors.transpose(-1, -2)
    result = greedy_dpp(kernel, k, case.mask)
    assert result.shape == (*case.mask.shape[:-1], k)
    for out, row, mask in zip(rows(result), rows(vectors, 2), rows(case.mask), strict=True):
        exact = row.double().numpy()
        assert out.tolist() == padded(brute_dpp(exact @ exact.T, mask.tolist(), k), k)


def test_greedy_dpp_beyond_the_rank_uses_the_diagonal():
    scale = torch.tensor([1.0, 2.0, 1.0, 4.0, 2.0, 0.0])
    axis = torch.tensor([0, 1, 1, 0, 0, 1])
    vectors = torch.nn.functional.one_hot(axis, 2) * scale[:, None]
    # 3 and 1 span all; then the longest (4), then the lowest of the equals, the empty one last.
    assert greedy_dpp(vectors @ vectors.T, 6).tolist() == [3, 1, 4, 0, 2, 5]


def test_greedy_dpp_stays_exact_for_many_picks():
    vectors = torch.randn(96, 64)
    picks = greedy_dpp(vectors @ vectors.T, 96)
    assert picks.sort().values.equal(torch.arange(96))
    exact = vectors.double().numpy()
    assert picks[:40].tolist() == brute_dpp(exact @ exact.T, [True] * 96, 40)


@pytest.mark.parametrize("choose", [farthest_points, greedy_dpp])
def test_budget_per_row_and_independence_of_batch_and_padding(choose):
    vectors = torch.nn.functional.normalize(torch.randn(4, 9, 16), dim=-1)
    matrix = vectors @ vectors.transpose(-1, -2)
    if choose is farthest_points:
        matrix = 1 - matrix
    mask = torch.rand(4, 9) < 0.7
    mask[2] = False
    hidden = ~(mask[:, :, None] & mask[:, None, :])
    matrix = matrix.masked_fill(hidden, torch.nan)  # must not be read
    budgets = torch.tensor([3, 9, 2, 0])
    together = choose(matrix, budgets, mask)
    assert together.shape == (4, 9)
    assert choose(matrix, budgets, mask, width=9).equal(together)
    assert (together >= 0).sum(-1).equal(torch.minimum(budgets, mask.sum(-1)))
    for i, k in enumerate(budgets.tolist()):
        assert choose(matrix[i], k, mask[i]).equal(together[i, :k])
    wider = torch.nn.functional.pad(matrix, (0, 2, 0, 2), value=torch.nan)
    assert choose(wider, budgets, torch.nn.functional.pad(mask, (0, 2))).equal(together)


@pytest.mark.parametrize("choose", [farthest_points, greedy_dpp])
def test_no_candidate_and_single_candidate(choose):
    assert choose(torch.zeros(2, 0, 0), 3).tolist() == [[-1] * 3] * 2
    assert choose(torch.ones(1, 1), 2).tolist() == [0, -1]
    assert choose(torch.ones(3, 3, dtype=torch.bfloat16), 3).tolist() == [0, 1, 2]
    assert choose(torch.ones(3, 3, requires_grad=True), 1).tolist() == [0]
    with pytest.raises(InputError, match=f"{choose.__name__}: got k=-1"), production():
        choose(torch.ones(2, 2), -1)


@pytest.mark.parametrize("balance", [0.0, 0.3, 1.0])
def test_greedy_mmr_equals_loops(balance: float):
    """Also per row: budgets, padding (NaN) and other rows change nothing."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(3, 7, 4, generator=generator), dim=-1)
    relevance = torch.rand(3, 7, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 1, 0], [0] * 7]).bool()
    budgets = [4, 6, 2]
    found = greedy_mmr(
        relevance.masked_fill(~mask, torch.nan),
        vectors.masked_fill(~mask[..., None], torch.nan),
        torch.tensor(budgets), balance, mask, width=6,
    )  # fmt: skip
    for row, k in enumerate(budgets):
        r, v, picked = relevance[row].tolist(), vectors[row].double().numpy(), []
        while len(picked) < min(k, int(mask[row].sum())):
            left = [i for i in range(7) if mask[row, i] and i not in picked]
            scores = [
                balance * r[i] - (1 - balance) * max(v[i] @ v[j] for j in picked)
                if picked else r[i]
                for i in left
            ]  # fmt: skip
            picked.append(left[int(np.argmax(scores))])
        assert found[row].tolist() == padded(picked, 6)


@quick
@given(size=st.integers(1, 7), seed=st.integers(0, 99), ties=st.booleans())
def test_greedy_redundancy_gives_the_greedy_choice(size: int, seed: int, ties: bool):
    """Also per row: budgets, padding (NaN) and other rows change nothing."""
    source = torch.Generator().manual_seed(seed)
    relevance = torch.rand(3, size, generator=source)
    if ties:
        relevance = relevance.round()
    vectors = torch.nn.functional.normalize(torch.randn(3, size, 3, generator=source), dim=-1)
    cosines = vectors @ vectors.mT
    mask = torch.rand(3, size, generator=source) < 0.8
    budgets = torch.randint(0, size + 1, (3,), generator=source)
    pairs = mask.unsqueeze(-1) & mask.unsqueeze(-2)
    found = greedy_redundancy(
        relevance.masked_fill(~mask, torch.nan), cosines.masked_fill(~pairs, torch.nan),
        torch.tensor(0.5), budgets, mask, width=size,
    )  # fmt: skip
    for row, k in enumerate(budgets.tolist()):
        r, c = relevance[row].tolist(), cosines[row].tolist()
        real = [i for i in range(size) if mask[row, i]]
        picked, expected = [], [-1.0] * size
        while len(picked) < min(k, len(real)):
            left = [i for i in real if i not in picked]
            likes = {i: max([c[i][j] for j in picked], default=-1.0) for i in left}
            pick = max(left, key=lambda i: np.float32(r[i]) - np.float32(0.5 * likes[i]))
            expected[pick] = likes[pick]
            picked.append(pick)
        for i in set(real) - set(picked):
            expected[i] = max([c[i][j] for j in picked], default=-1.0)
        assert found[row][mask[row]].tolist() == [expected[i] for i in real]
        ranks = relevance[row] - 0.5 * found[row]
        assert top_k(ranks, k, mask[row]).tolist() == padded(picked, k)


def test_greedy_redundancy_has_a_gradient():
    cosines = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.0], [0.2, 0.0, 1.0]], requires_grad=True)
    greedy_redundancy(torch.tensor([3.0, 2.9, 2.5]), cosines, 1.0, 2).sum().backward()
    assert cosines.grad.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert greedy_redundancy(torch.zeros(2, 0), torch.zeros(2, 0, 0), 1.0, 3).shape == (2, 0)


def test_nearest_other_by_hand():
    distances = torch.tensor([[0.0, 2.0, 9.0], [2.0, 0.0, 1.0], [9.0, 1.0, 0.0]])
    assert nearest_other(distances).tolist() == [2.0, 1.0, 1.0]
    mask = torch.tensor([True, True, False])
    assert nearest_other(distances, mask)[:2].tolist() == [2.0, 2.0]
    assert nearest_other(torch.zeros(1, 1)).tolist() == [torch.inf]
    assert nearest_other(torch.zeros(2, 0, 0)).shape == (2, 0)


@quick
@given(size=st.integers(1, 7), seed=st.integers(0, 99))
def test_distinctness_equals_loops(size: int, seed: int):
    source = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 3, (2, size), generator=source).float()  # ties abound
    cosines = torch.rand(2, size, size, generator=source) * 2 - 1
    mask = torch.rand(2, size, generator=source) < 0.7
    found = distinctness(scores, cosines, mask)
    for row in range(2):
        order = sorted(range(size), key=lambda i: (-scores[row, i].item(), i))
        for place, i in enumerate(order):
            above = [cosines[row, i, j].item() for j in order[:place] if mask[row, j]]
            assert found[row, i].item() == pytest.approx(1 - max(above, default=-1.0))


def test_distinctness_of_no_candidates_and_of_nan():
    assert distinctness(torch.zeros(2, 0), torch.zeros(2, 0, 0)).shape == (2, 0)
    cosines = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    found = distinctness(torch.tensor([torch.nan, -5.0]), cosines)
    assert found.tolist() == [0.5, 2.0]  # as in top_k, a NaN comes last


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_ordered_dither_covers_evenly(level: int):
    """The first 4^level of 16 x 16 places are a lattice of 2^level x 2^level."""
    places = torch.arange(256)
    order = ordered_dither(places // 16, places % 16)
    assert order.unique().numel() == 256
    first = order.argsort(descending=True)[: 4**level]
    step = 16 // 2**level
    assert (first // 16 % step == 0).all()
    assert (first % 16 % step == 0).all()


def test_ordered_dither_is_bayers_matrix():
    """Bits of the column and of the row in turn, from the lowest on; -1 is all ones."""
    place = torch.tensor([0, 1, 5, 100, 1023, -1])
    row, column = torch.meshgrid(place, place, indexing="ij")
    for found, y, x in zip(
        ordered_dither(row, column).flatten().tolist(),
        row.flatten().tolist(),
        column.flatten().tolist(),
        strict=True,
    ):
        bits = "".join(f"{((x >> b) ^ (y >> b)) & 1}{(y >> b) & 1}" for b in range(10))
        assert found == 1 - int(bits, 2) / 4**10
