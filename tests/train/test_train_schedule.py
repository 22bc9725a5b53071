"""Learning-rate schedules and annealing."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eligo.train import AnnealConfig, ScheduleConfig, lr_factor

KINDS = {
    "constant": {},
    "linear": {"final_ratio": 0.1},
    "cosine": {},
    "poly": {},
    "milestones": {"milestones": (0.3, 0.5)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_linear_and_the_decay_continuous(kind: str) -> None:
    schedule = ScheduleConfig.model_validate({"kind": kind, "warmup": 0.1, **KINDS[kind]})
    factors = [lr_factor(schedule, step, 1000) for step in range(1000)]
    assert factors[:100] == [(step + 1) / 100 for step in range(100)]
    assert factors[100] == 1.0
    assert all(a >= b for a, b in pairwise(factors[100:]))


def test_values_after_the_warmup() -> None:
    half = {
        kind: lr_factor(ScheduleConfig.model_validate({"kind": kind, **more}), 500, 1000)
        for kind, more in KINDS.items()
    }
    assert half["constant"] == 1.0
    assert half["linear"] == pytest.approx(0.55)
    assert half["cosine"] == pytest.approx(0.5)
    assert half["poly"] == pytest.approx(0.5**0.9)
    assert half["milestones"] == pytest.approx(0.3**2)
    assert lr_factor(ScheduleConfig(final_ratio=0.2), 1000, 1000) == pytest.approx(0.2)
    assert lr_factor(ScheduleConfig(warmup=10), 4, 1000) == 0.5


def test_legacy_poly_equals_dformer() -> None:
    # Values of DFormer's released scheduler: base 6e-5, power 0.9, 25000 steps, warm-up 500.
    schedule = ScheduleConfig(kind="legacy_poly", warmup=500)
    golden = {
        0: 0.0,
        1: 1.2000000000000002e-07,
        250: 3e-05,
        499: 5.988e-05,
        500: 5.891891199579452e-05,
        10000: 3.788675204936132e-05,
        24999: 6.607014236065942e-09,
    }
    for step, rate in golden.items():
        assert 6e-5 * lr_factor(schedule, step, 25000) == pytest.approx(rate, rel=1e-9)


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0.1, 5), st.floats(0.1, 5))
def test_anneal_stays_between_its_ends(p: float, a: float, start: float, end: float) -> None:
    config = AnnealConfig(start=start, end=end, anneal_fraction=a)
    assert min(start, end) - 1e-9 <= config.at(p) <= max(start, end) + 1e-9
    expected = start - p / a * (start - end) if p < a else end
    assert math.isclose(config.at(p), expected)


def test_milestones_require_the_kind_milestones() -> None:
    with pytest.raises(ValidationError, match="go together"):
        ScheduleConfig(milestones=(0.5,))
    with pytest.raises(ValidationError, match="fractions"):
        ScheduleConfig(kind="milestones", milestones=(9.0,))
