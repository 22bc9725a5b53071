"""Counter-based random draws: uniform, independent, reproducible."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.scenes import draws
from eligo.scenes.graph import SPLITS
from strategies import quick

KEYS = draws.scene_keys(7, 0, torch.arange(20_000))


def chi_square(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Per degree of freedom: near 1 if the values follow the expected frequencies."""
    observed = torch.bincount(values.flatten(), minlength=len(expected)).double()
    scaled = expected.double() / expected.sum() * values.numel()
    return ((observed - scaled) ** 2 / scaled).sum().item() / (len(expected) - 1)


@pytest.mark.parametrize("below", [2, 3, 7, 8, 161, 200])
def test_integers_are_uniform(below: int) -> None:
    values = draws.integers(KEYS, "some", 4, below)
    assert values.min() >= 0
    assert values.max() < below
    slack = 6 / (below - 1) ** 0.5
    for column in values.T:
        assert chi_square(column, torch.ones(below)) < 1 + slack


@pytest.mark.parametrize("other", ["another stream", "another place", "the next index"])
def test_draws_are_independent(other: str) -> None:
    values = draws.integers(KEYS, "some", 2, 8)
    first = values[:, 0]
    second = {
        "another stream": draws.integer(KEYS, "any", 8),
        "another place": values[:, 1],
        "the next index": first.roll(1),
    }[other]
    assert chi_square(first * 8 + second, torch.ones(64)) < 1.8


def test_every_input_bit_matters() -> None:
    bits = torch.tensor(1) << torch.arange(64)
    flipped = draws.mix(KEYS[:200, None]) ^ draws.mix(KEYS[:200, None] ^ bits)
    ones = (flipped[..., None] >> torch.arange(64)) & 1
    assert (ones.double().mean((0, 2)) - 0.5).abs().max() < 0.03


def test_splits_and_seeds_have_distinct_keys() -> None:
    indices = torch.arange(50_000)
    keys = [draws.scene_keys(seed, split, indices) for seed in (0, 1, 99) for split in range(3)]
    assert len(SPLITS) == 3
    assert len(torch.cat(keys).unique()) == 9 * len(indices)


@quick
@given(st.data())
def test_choose_takes_only_allowed_values(data: st.DataObject) -> None:
    options = data.draw(st.integers(1, 9))
    rows = st.lists(st.booleans(), min_size=options, max_size=options)
    allowed = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=5)))
    key = draws.scene_keys(data.draw(st.integers(0, 1000)), 0, torch.arange(len(allowed)))
    index, found = draws.choose(key, "choice", allowed)
    assert torch.equal(found, allowed.any(-1))
    assert allowed.gather(1, index[:, None])[:, 0][found].all()
    assert (index[~found] == 0).all()


def test_choose_is_uniform_over_allowed_values() -> None:
    allowed = torch.tensor([True, False, True, True, False]).expand(len(KEYS), -1)
    index, _ = draws.choose(KEYS, "choice", allowed)
    assert chi_square(index, torch.tensor([1, 1e-9, 1, 1, 1e-9])) < 3


def test_choose_follows_the_weights() -> None:
    index = draws.choose_weighted(KEYS, "weighted", (1, 0, 5, 2))
    assert not (index == 1).any()
    assert chi_square(index, torch.tensor([1, 1e-9, 5, 2])) < 3


def test_permutations_are_uniform() -> None:
    order = draws.permutations(KEYS, "order", 6)
    assert torch.equal(order.sort(-1).values, torch.arange(6).expand_as(order))
    for column in order.T:
        assert chi_square(column, torch.ones(6)) < 3.5


def test_fewer_draws_are_a_prefix() -> None:
    assert torch.equal(draws.subkeys(KEYS, "a", 9)[:, :4], draws.subkeys(KEYS, "a", 4))
