"""Similarity scale: bounds, gradients, legacy formulas, precision."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.nn import SimilarityScale

DEFAULT = 14.285714  # 1 / 0.07, the SAM guide's start


def extreme_logit(scale: SimilarityScale, dim: int = 16) -> float:
    """The logit of a unit vector with itself: the largest a cosine can be."""
    unit = F.normalize(torch.randn(1, dim), dim=-1)
    return scale(unit, unit).item()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("init", [1.0, DEFAULT, 100.0])
def test_largest_logit_equals_the_scale(similarity: str, learnable: bool, init: float):
    scale = SimilarityScale(similarity, learnable=learnable, init=init)
    expected = init if similarity == "cosine" else init / math.sqrt(16)
    assert extreme_logit(scale) == pytest.approx(expected, rel=1e-5)
    query, key = torch.randn(2, 5, 16) * 3, torch.randn(2, 7, 16) * 3
    logits = scale(query, key)
    if similarity == "cosine":
        assert logits.abs().max() <= init * (1 + 1e-5)
        expected_logits = init * F.cosine_similarity(query[:, :, None], key[:, None], dim=-1)
    else:
        expected_logits = init * (query[:, :, None] * key[:, None]).sum(-1) / 4
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("init", [1.0, DEFAULT, 100.0])
def test_legacy_formulas_by_hand(similarity: str, learnable: bool, init: float):
    scale = SimilarityScale(similarity, learnable=learnable, init=init, legacy=True)
    query, key = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    stored = math.log(init)
    multiplier = math.exp(min(max(stored, -2.0), 2.0)) if learnable else math.exp(stored)
    q, k = query, key
    if similarity == "cosine":
        q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    expected = multiplier * (q @ k.mT) / math.sqrt(8)
    torch.testing.assert_close(scale(query, key), expected, rtol=1e-5, atol=1e-5)


def scale_gradient(scale: SimilarityScale) -> Tensor:
    query, key = torch.randn(4, 5, 8), torch.randn(4, 7, 8)
    attention = scale(query, key).softmax(-1)
    (gradient,) = torch.autograd.grad((attention * torch.randn(4, 5, 7)).sum(), scale.log_scale)
    return gradient


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("init", [0.01, 1.0, DEFAULT, 100.0])
def test_learnable_scale_has_a_gradient_at_its_start(similarity: str, init: float):
    assert scale_gradient(SimilarityScale(similarity, learnable=True, init=init)).abs() > 1e-5


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_legacy_clamp_has_no_gradient_at_its_default(similarity: str):
    """The same test that passes above shows the legacy form dead: it can fail."""
    dead = SimilarityScale(similarity, learnable=True, init=DEFAULT, legacy=True)
    assert scale_gradient(dead).item() == 0.0
    alive = SimilarityScale(similarity, learnable=True, init=1.0, legacy=True)
    assert scale_gradient(alive).abs() > 1e-5


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_stays_in_bounds_with_a_gradient_after_optimiser_steps(direction: float):
    scale = SimilarityScale("cosine", learnable=True, init=1.0, bounds=(0.5, 2.0))
    optimiser = torch.optim.SGD(scale.parameters(), lr=1.0)
    for _ in range(5):
        optimiser.zero_grad()
        (direction * scale.scale).backward()
        assert scale.log_scale.grad is not None
        assert scale.log_scale.grad.abs() > 0.1  # at the bound too
        optimiser.step()
        scale.project_()
        assert 0.5 - 1e-6 <= scale.scale.item() <= 2.0 + 1e-6
    assert scale.scale.item() == pytest.approx(0.5 if direction > 0 else 2.0)


def test_fixed_and_legacy_scales_are_not_projected():
    fixed = SimilarityScale("cosine", init=500.0)
    legacy = SimilarityScale("cosine", learnable=True, init=500.0, legacy=True)
    for scale in (fixed, legacy):
        scale.project_()
        assert scale.log_scale.item() == pytest.approx(math.log(500.0))


def test_stored_as_a_logarithm_parameter_or_buffer():
    learnable = SimilarityScale("cosine", learnable=True, init=10.0)
    fixed = SimilarityScale("cosine", init=10.0)
    assert [name for name, _ in learnable.named_parameters()] == ["log_scale"]
    assert not list(fixed.parameters())
    for module in (learnable, fixed):
        assert module.state_dict()["log_scale"].item() == pytest.approx(math.log(10.0))
        other = SimilarityScale("cosine", learnable=module.learnable, init=1.0)
        other.load_state_dict(module.state_dict())
        assert other.scale.item() == pytest.approx(10.0)
    assert SimilarityScale.no_weight_decay == ("log_scale",)
    assert "fixed" in repr(fixed)
    assert "legacy" in repr(SimilarityScale("dot", legacy=True))
    with torch.device("meta"):
        assert "unset" in repr(SimilarityScale("cosine", learnable=True))


def test_float32_logits_from_bfloat16_and_under_autocast():
    scale = SimilarityScale("cosine", init=DEFAULT)
    query, key = torch.randn(3, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    exact = scale(query.float(), key.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = scale(query, key)
    assert logits.dtype == torch.float32
    assert logits.equal(exact)


def test_zero_vectors_are_finite():
    query = torch.zeros(1, 4, requires_grad=True)
    logits = SimilarityScale("cosine")(query, torch.randn(2, 4))
    assert logits.eq(0).all()
    logits.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init": 0.0}, "multiplier itself"),
        ({"init": -2.66}, "multiplier itself"),
        ({"init": math.nan}, "multiplier itself"),
        ({"init": 200.0, "learnable": True}, "within the bounds"),
        ({"bounds": (0.0, 1.0)}, "0 < low < high"),
        ({"bounds": (2.0, 1.0)}, "0 < low < high"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str):
    with pytest.raises(InputError, match=message):
        SimilarityScale("cosine", **arguments)
